#include "nn/wide_product.h"

#include <torch/torch.h>

namespace dba {

at::Tensor matmul_in(at::ScalarType type, const at::Tensor& a, const at::Tensor& b) {
  const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
  return torch::matmul(a.to(type), b.to(type));
}

at::Tensor wide_matmul(const at::Tensor& a, const at::Tensor& b) {
  TORCH_INTERNAL_ASSERT(a.sizes().slice(0, a.dim() - 2) == b.sizes().slice(0, b.dim() - 2));
  const auto type =
      at::elementSize(a.scalar_type()) < at::elementSize(b.scalar_type()) ? a.scalar_type() : b.scalar_type();
  // What is to be differentiated needs operators with derivatives.
  if (type != at::kHalf || !a.is_cuda() || at::GradMode::is_enabled()) {
    return matmul_in(product_type(type), a, b);
  }
  const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
  const auto batch = [](const at::Tensor& x) { return x.to(at::kHalf).reshape({-1, x.size(-2), x.size(-1)}); };
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return at::bmm(batch(a), batch(b), at::kFloat).view(sizes);
}

}  // namespace dba
