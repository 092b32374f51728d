#include "nn/wide_product.h"

#include <torch/torch.h>

namespace dba {

at::Tensor wide_matmul(const at::Tensor& a, const at::Tensor& b) {
  const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
  const auto type =
      at::elementSize(a.scalar_type()) < at::elementSize(b.scalar_type()) ? a.scalar_type() : b.scalar_type();
  // What is to be differentiated needs operators with derivatives.
  if (type != at::kHalf || !a.is_cuda() || at::GradMode::is_enabled()) {
    return torch::matmul(a.to(product_type(type)), b.to(product_type(type)));
  }
  const auto batch = [](const at::Tensor& x) { return x.to(at::kHalf).reshape({-1, x.size(-2), x.size(-1)}); };
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return at::bmm(batch(a), batch(b), at::kFloat).view(sizes);
}

}  // namespace dba
