#include "ops/dropout_mask.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <torch/library.h>

#include <limits>
#include <utility>

#include "ops/checks.h"
#include "ops/signatures.h"

namespace dba::ops {

Dropout Dropout::draw(double p, at::Device device) {
  Dropout dropout{p, {}};
  if (p > 0) {
    const auto options = at::TensorOptions().dtype(at::kLong).device(device);
    dropout.rng = at::randint(std::numeric_limits<int64_t>::max(), {2}, options);
  }
  return dropout;
}

at::Tensor dropout_mask(const Dropout& dropout, Site site, const at::Tensor& sequence, const at::Tensor& first_token,
                        int64_t tokens, int64_t slots, at::ScalarType dtype) {
  check_dropout("dropout_mask", dropout, sequence.device());
  if (dropout.p == 0) {
    return at::ones({sequence.size(0), tokens, slots}, sequence.options().dtype(dtype));
  }
  static const auto op = typed_operator<signature::DropoutMask>("dba::dropout_mask");
  return op.call(dropout.rng, dropout.p, site, sequence, first_token, tokens, slots, dtype);
}

void check_dropout_mask(const at::Tensor& rng, double p, const at::Tensor& sequence, const at::Tensor& first_token) {
  constexpr auto function = "dropout_mask";
  check_shape(function, "sequence", sequence, {-1});
  check_shape(function, "first_token", first_token, {sequence.size(0)});
  check_shape(function, "rng", rng, {2});
  for (const auto& [tensor, argument] :
       {std::pair(sequence, "sequence"), std::pair(first_token, "first_token"), std::pair(rng, "rng")}) {
    TORCH_CHECK(tensor.scalar_type() == at::kLong, "dba::", function, ": ", argument, " must be int64, got ",
                describe(tensor));
    TORCH_CHECK(tensor.device() == sequence.device(), "dba::", function, ": ", argument,
                " must be on the device of sequence, ", sequence.device(), ", got ", describe(tensor));
  }
  check_dropout(function, {p, rng}, sequence.device());
}

namespace {

at::Tensor dropout_mask_kernel(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                               const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype) {
  check_dropout_mask(rng, p, sequence, first_token);
  return dropout_mask_reference(rng, p, site, sequence, first_token, tokens, slots, dtype);
}

at::Tensor dropout_mask_meta(const at::Tensor& rng, double p, int64_t /*site*/, const at::Tensor& sequence,
                             const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype) {
  check_dropout_mask(rng, p, sequence, first_token);
  return at::empty({sequence.size(0), tokens, slots}, sequence.options().dtype(dtype));
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("dropout_mask", dropout_mask_kernel);
}

TORCH_LIBRARY_IMPL(dba, Meta, m) {
  m.impl("dropout_mask", dropout_mask_meta);
}

}  // namespace dba::ops
