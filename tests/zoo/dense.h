#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>

#include "dba/zoo.h"
#include "support/per_head.h"

/// Every member of the zoo on one sequence as its formula reads: dense maps, loops, no tricks.
namespace dba::test {

/// A layer as the formulas see it.
struct DenseLayer {
  const torch::nn::Module& module;
  zoo::OptionValues values;
  int64_t heads;

  /// A parameter or buffer; undefined where the layer has none of that name.
  at::Tensor tensor(const std::string& name) const;
  /// x through the linear layer of that name.
  at::Tensor apply(const std::string& linear, const at::Tensor& x) const;
  int64_t integer(const std::string& option) const {
    return std::stoll(values.at(option));
  }
  /// concat_h(of_head(h, columns of q, k, v)) through w_o: q of x, k and v of `memory`.
  at::Tensor by_head(const at::Tensor& x, const at::Tensor& memory,
                     const std::function<at::Tensor(int64_t head, const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v)>& of_head) const;
};

/// What the member makes of a sequence x (n, d) that attends to `memory` (m, d); self-attention: x twice.
at::Tensor dense_attention(const std::string& member, const DenseLayer& layer, const at::Tensor& x,
                           const at::Tensor& memory);

/// softmax over the true entries of mask (n, m) of q kᵀ/√d_h, times v.
at::Tensor pattern_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask);
/// (n, m) bool from a rule about i and j.
at::Tensor pattern(int64_t n, int64_t m, const std::function<bool(int64_t, int64_t)>& rule);

/// Those whose map is a softmax over a pattern of pairs, and the Synthesizer.
at::Tensor dense_pattern(const std::string& member, const DenseLayer& layer, const at::Tensor& x);
/// Those that hash, sort or estimate.
at::Tensor dense_sorted(const std::string& member, const DenseLayer& layer, const at::Tensor& x,
                        const at::Tensor& memory);

}  // namespace dba::test
