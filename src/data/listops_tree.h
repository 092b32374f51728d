#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dba/data/listops.h"
#include "dba/data/random.h"

namespace dba::data {

/// Draws expressions and spells them.
class ListOpsTree {
 public:
  explicit ListOpsTree(const ListOpsOptions& options) : options_(options) {}

  /// Draws one; false where its length is out of bounds (drawing stops as soon as that is certain).
  bool draw(CounterRandom& random);

  /// The nodes from the root on: a digit, or kFirstOperator plus the operator followed by the number of arguments.
  /// Equal codes are equal expressions.
  const std::vector<std::uint8_t>& code() const {
    return code_;
  }
  std::size_t length() const {
    return length_;
  }

  /// Appends the expression last drawn, as Long-Range Arena writes it, and returns its value.
  int spell(std::string& text) const;

  static constexpr std::uint8_t kFirstOperator = 10;

 private:
  bool draw_node(CounterRandom& random, std::size_t depth);
  int spell_node(std::size_t& position, std::string& text) const;

  ListOpsOptions options_;
  std::vector<std::uint8_t> code_;
  std::size_t length_ = 0;
};

}  // namespace dba::data
