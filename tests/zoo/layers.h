#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "dba/zoo.h"
#include "support/cases.h"

/// Small layers of every member with their default options.
namespace dba::test {

using zoo::OptionValues;

inline constexpr int64_t kLongest = 700;

inline OptionValues with_length(const zoo::Member& member, OptionValues values = {}, int64_t length = kLongest) {
  if (member.capabilities.needs_max_length)
    values.emplace("max_length", std::to_string(length));
  return values;
}

inline DBAttentionOptions small() {
  return DBAttentionOptions(8, 2).d_p(5).d_in(4).z_update(ZUpdate::own);
}

/// A layer in double whose weights depend on its parameters' shapes alone.
inline std::shared_ptr<torch::nn::Module> layer_of(const zoo::Member& member, const OptionValues& values,
                                                   double dropout = 0.0) {
  auto layer = zoo::make(member.name, small().dropout(dropout), with_length(member, values));
  layer->to(at::kDouble);
  Random(3).fill(*layer);
  return layer;
}

inline at::Tensor run(const std::shared_ptr<torch::nn::Module>& layer, const at::Tensor& x) {
  return dynamic_cast<Attention&>(*layer).forward(x).y;
}

inline std::vector<std::string> member_names() {
  std::vector<std::string> all;
  for (const auto& member : zoo::members())
    all.push_back(member.name);
  return all;
}

}  // namespace dba::test
