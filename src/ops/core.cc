#include <torch/library.h>

#include "ops/checks.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

using at::Tensor;

// Only ATen products inside: the same code serves as shape function on the meta device.
std::tuple<Tensor, Tensor> core_kernel(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                       double p, const Optional& rng) {
  const SettledTypes settled;
  const auto dropout = dropout_of(p, rng);
  const auto parameters = core_weights(weights);
  check_core("core", c, r, parameters, heads);
  check_dropout("core", dropout, c.device());
  require_reference_allowed("core", c);
  const auto result = reference::core(c, r, parameters, heads, dropout);
  return {result.m, result.c};
}

/// dc, dr, then one gradient for each weight that is present, in the order of the list.
std::vector<Tensor> core_backward_kernel(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                         double p, const Optional& rng, const Optional& dm,
                                         const Optional& dcompressed) {
  const SettledTypes settled;
  const auto parameters = core_weights(weights);
  const auto gradients = reference::core_backward(c, r, parameters, heads, dropout_of(p, rng), value_or_absent(dm),
                                                  value_or_absent(dcompressed));
  std::vector<Tensor> result{gradients.dc, gradients.dr};
  for (const auto member : core_weight_members()) {
    if ((parameters.*member).defined()) {
      result.push_back((gradients.weights.*member).to((parameters.*member).scalar_type()));
    }
  }
  return result;
}

}  // namespace

CoreResult core(const Tensor& c, const Tensor& r, const CoreWeights& weights, int64_t heads, const Dropout& dropout) {
  static const auto op = typed_operator<signature::Core>("dba::core");
  auto [m, compressed] = op.call(c, r, core_weight_list(weights), heads, dropout.p, optional(dropout.rng));
  return {m, compressed};
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("core", core_kernel);
  m.impl("core_backward", core_backward_kernel);
}

}  // namespace dba::ops
