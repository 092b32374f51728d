#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <torch/library.h>

#include "ops/checks.h"
#include "ops/signatures.h"

namespace dba::ops {
namespace {

/// Plain products that PyTorch differentiates itself.
std::tuple<at::Tensor, at::Tensor> fold_kernel(const at::Tensor& z, const at::Tensor& weight, const Optional& bias,
                                               int64_t heads, double scale) {
  const SettledTypes settled;
  TORCH_CHECK(z.dim() == 2 || z.dim() == 3, "dba::fold: z must be of shape (d_p, H·w) or (B, d_p, H·w), got ",
              describe(z));
  check_shape("fold", "weight", weight, {z.size(-1), -1});
  check_heads("fold", heads, "the width of z", z.size(-1));
  const auto bias_value = value_or_absent(bias);
  check_shape("fold", "bias", bias_value, {z.size(-1)}, true);
  TORCH_CHECK(z.device() == weight.device(), "dba::fold: z and weight must be on one device, got ", describe(z),
              " and ", describe(weight));

  const auto type = c10::promoteTypes(z.scalar_type(), weight.scalar_type());
  const bool each = z.dim() == 3;
  const auto d_p = z.size(-2);
  const auto width = z.size(-1) / heads;
  const auto batch = each ? z.size(0) : 1;
  const auto scaled = z.to(type) * scale;
  const auto slots = scaled.view({batch, d_p, heads, width}).transpose(1, 2);  // (B, H, d_p, w)
  auto rows = at::matmul(slots, weight.to(type).view({heads, width, -1}))      // (B, H, d_p, d)
                  .reshape({batch, heads * d_p, weight.size(1)});
  at::Tensor row_bias;
  if (bias_value.defined()) {
    row_bias = at::matmul(slots, bias_value.to(type).view({heads, width, 1})).reshape({batch, heads * d_p});
  }
  if (!each) {
    rows = rows.squeeze(0);
    row_bias = row_bias.defined() ? row_bias.squeeze(0) : row_bias;
  }
  return {rows, row_bias};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> fold(const at::Tensor& z, const at::Tensor& weight, const at::Tensor& bias,
                                       int64_t heads, double scale) {
  static const auto op = typed_operator<signature::Fold>("dba::fold");
  auto [rows, row_bias] = op.call(z, weight, optional(bias), heads, scale);
  return {rows, row_bias};
}

TORCH_LIBRARY_IMPL(dba, CompositeImplicitAutograd, m) {
  m.impl("fold", fold_kernel);
}

}  // namespace dba::ops
