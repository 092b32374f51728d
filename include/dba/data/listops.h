#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace dba::data {

/// Nested list operations as in Long-Range Arena: a node is a digit with probability 3/4, and always at the greatest
/// depth; otherwise an operator (MIN, MAX, MED, SM) of 2 … max_args nodes. Its length is 1 for a digit, 2 more than its
/// arguments for an operator. Expressions are kept where min_length < length < max_length, none twice, in all parts
/// together.
struct ListOpsOptions {
  std::uint64_t seed = 0;
  std::size_t max_depth = 10;  ///< of nodes; the root is at depth 1
  std::size_t max_args = 10;
  std::size_t min_length = 500;   ///< exclusive
  std::size_t max_length = 2000;  ///< exclusive
  std::size_t values = 10;        ///< digits are 0 … values − 1
  std::size_t train = 96'000;
  std::size_t validation = 2'000;
  std::size_t test = 2'000;
  /// 0: one per processor. The files are the same whatever the number.
  std::size_t threads = 0;
};

/// How many expressions are written, of how many.
using ListOpsProgress = std::function<void(std::size_t done, std::size_t total)>;

/// Writes basic_train.tsv, basic_val.tsv and basic_test.tsv into an existing folder, in the form of Long-Range Arena's
/// own: a header "Source\tTarget", lines that end in CR LF, and an operator spelled as a binary tree,
/// "( ( ( [MAX 2 ) 9 ) ] )". Each file appears whole or not at all. Throws std::invalid_argument for options out of
/// range and for lengths that (nearly) no expression has; bytes::FileError.
void generate_listops(const std::filesystem::path& folder, const ListOpsOptions& options = {},
                      const ListOpsProgress& progress = {});

/// The value of an expression, parentheses ignored: MED is the median rounded down, SM the sum modulo 10. Throws
/// bytes::FormatError for text that is no expression.
int evaluate_listops(std::string_view source);

/// Why a text without parentheses, as strip_listops leaves it, is no expression; empty: it is one.
std::string listops_fault(std::string_view stripped);

/// The expression without parentheses, "]" and every other token one space apart.
void strip_listops(std::string_view source, std::string& stripped);

}  // namespace dba::data
