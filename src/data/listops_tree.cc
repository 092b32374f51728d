#include "listops_tree.h"

#include <span>

#include "listops_operators.h"

namespace dba::data {

bool ListOpsTree::draw(CounterRandom& random) {
  code_.clear();
  length_ = 0;
  return draw_node(random, 1) && length_ > options_.min_length;
}

bool ListOpsTree::draw_node(CounterRandom& random, std::size_t depth) {
  const bool is_operator = depth < options_.max_depth && random.below(4) == 0;
  length_ += is_operator ? 2 : 1;
  if (length_ >= options_.max_length)
    return false;
  if (!is_operator) {
    code_.push_back(static_cast<std::uint8_t>(random.below(static_cast<std::uint32_t>(options_.values))));
    return true;
  }
  const std::uint32_t arguments = 2 + random.below(static_cast<std::uint32_t>(options_.max_args - 1));
  code_.push_back(static_cast<std::uint8_t>(kFirstOperator + random.below(kOperators.size())));
  code_.push_back(static_cast<std::uint8_t>(arguments));
  for (std::uint32_t i = 0; i < arguments; ++i) {
    if (!draw_node(random, depth + 1))
      return false;
  }
  return true;
}

int ListOpsTree::spell(std::string& text) const {
  std::size_t position = 0;
  return spell_node(position, text);
}

// An operator takes its arguments one by one, each step a pair in parentheses, the last with the closing bracket.
int ListOpsTree::spell_node(std::size_t& position, std::string& text) const {
  const std::uint8_t node = code_[position++];
  if (node < kFirstOperator) {
    text += static_cast<char>('0' + node);
    return node;
  }
  const std::size_t number = node - kFirstOperator;
  const std::size_t arguments = code_[position++];
  for (std::size_t i = 0; i <= arguments; ++i)
    text += "( ";
  text += kOperators[number];
  std::array<std::uint8_t, 256> values;
  for (std::size_t i = 0; i < arguments; ++i) {
    text += ' ';
    values[i] = static_cast<std::uint8_t>(spell_node(position, text));
    text += " )";
  }
  text += " ] )";
  return apply_operator(number, std::span(values).first(arguments));
}

}  // namespace dba::data
