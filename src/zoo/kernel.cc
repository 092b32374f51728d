#include "zoo/kernel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

namespace dba::zoo {

at::Tensor kernel_attention(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& v, Denominator denominator,
                            double eps) {
  const auto sums = torch::matmul(f_k.transpose(2, 3), v);         // (B, H, m, w)
  const auto total = torch::matmul(f_q, f_k.sum(2).unsqueeze(3));  // (B, H, n, 1)
  const auto weight = denominator == Denominator::plus    ? total + eps
                      : denominator == Denominator::clamp ? total.clamp_min(eps)
                                                          : total.masked_fill(total.eq(0), 1);
  return torch::matmul(f_q, sums) / weight;
}

at::Tensor real_features(const at::Tensor& features, const at::Tensor& valid) {
  return valid.defined() ? features.masked_fill(valid.logical_not().unsqueeze(1).unsqueeze(3), 0) : features;
}

at::Tensor unit_rows(const at::Tensor& x) {
  const auto length = x.norm(2, {-1}, /*keepdim=*/true);
  return x / length.masked_fill(length.eq(0), 1);
}

at::Tensor seeded_normal(at::IntArrayRef sizes, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::normal(0.0, 1.0, sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor orthogonal_features(int64_t count, int64_t width, int64_t seed) {
  const auto groups = (count + width - 1) / width;
  const auto gaussian = seeded_normal({2, groups, width, width}, seed);
  // With the signs of R's diagonal the orthogonal matrices are uniform; without them they lean to one side.
  const auto [q, r] = at::linalg_qr(gaussian[0]);
  const auto directions = (q * r.diagonal(0, 1, 2).sign().unsqueeze(1)).transpose(1, 2);
  const auto lengths = gaussian[1].norm(2, 2, /*keepdim=*/true);
  return (directions * lengths).flatten(0, 1).narrow(0, 0, count).to(at::kFloat).contiguous();
}

}  // namespace dba::zoo
