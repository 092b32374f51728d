#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace dba::zoo {

/// Tokens of some groups, sorted by their codes for every hash. Tokens of a bucket fill blocks of their own, `size`
/// rows each, the last one with zeros: products over blocks are products within buckets. With U = groups · hashes,
/// every one has room for the same number of blocks, as many as its tokens may take.
class Buckets {
 public:
  /// codes (G, n, hashes) of int16, numbers below `buckets` in 16 bits.
  Buckets(const at::Tensor& codes, int64_t buckets, int64_t size);

  /// Blocks that n tokens may take.
  static int64_t blocks_of(int64_t n, int64_t buckets, int64_t size);

  /// rows (G, n, w) in their blocks: (U·blocks, size, w).
  at::Tensor laid_out(const at::Tensor& rows) const;
  /// Σ_j a_jᵀ b_j over the tokens of each bucket, a and b laid out: (U·buckets, w_a, w_b).
  at::Tensor tables(const at::Tensor& a, const at::Tensor& b) const;
  /// a_i times the table of its bucket, a laid out, summed over the hashes: (G, n, w_b).
  at::Tensor look_up(const at::Tensor& a, const at::Tensor& tables) const;

 private:
  int64_t groups_, n_, hashes_, buckets_, size_, blocks_;
  at::Tensor token_;   ///< (U, blocks·size): the token of each row, n where there is none
  at::Tensor row_;     ///< (U, n): the row of each token
  at::Tensor bucket_;  ///< (U, blocks): whose table a block's is
  at::Tensor first_;   ///< (U, buckets): a bucket's first block
};

/// With i ~ j where a hash sends both to the same bucket: Σ_h Σ_{j ~ i} (dy_i·v_j) k_j for every i and
/// Σ_h Σ_{i ~ j} (dy_i·v_j) q_i for every j. q and dy (G, n, w), k and v (G, m, w), codes (G, n or m, hashes) of int16.
/// The cost is linear in n and m; products are taken in `type`, and for so many groups and hashes at a time, one at
/// least, that they hold about `at_once` numbers; tables that are larger than some copies of the tokens come by
/// columns.
std::tuple<at::Tensor, at::Tensor> sums_within_buckets(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                       const at::Tensor& dy, const at::Tensor& code_q,
                                                       const at::Tensor& code_k, int64_t buckets, at::ScalarType type,
                                                       int64_t at_once);

/// Rows of a block: few waste less where buckets are small, many multiply faster.
int64_t rows_of_bucket_block(at::Device device);

}  // namespace dba::zoo
