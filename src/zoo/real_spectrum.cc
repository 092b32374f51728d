#include "zoo/real_spectrum.h"

#include <torch/library.h>
#include <torch/torch.h>

#include "ops/arguments.h"

namespace dba::zoo {
namespace {

using at::Tensor;

Tensor real_spectrum_kernel(const Tensor& half, int64_t width, at::ScalarType type) {
  check_real_spectrum(half, width, type);
  return real_spectrum_composed(half, width, type);
}

TORCH_LIBRARY_FRAGMENT(dba, m) {
  m.def("real_spectrum(Tensor half, int width, ScalarType dtype) -> Tensor");
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("real_spectrum", real_spectrum_kernel);
}

}  // namespace

void check_real_spectrum(const Tensor& half, int64_t width, at::ScalarType type) {
  TORCH_CHECK(half.dim() == 3 && half.is_complex() && width >= 1 && half.size(2) == width / 2 + 1,
              "dba::real_spectrum: half must be complex, (B, n, ", width / 2 + 1, ") for the width ", width, ", got ",
              half.scalar_type(), " ", half.sizes());
  TORCH_CHECK(at::isFloatingType(type), "dba::real_spectrum: dtype must be a floating type, got ", type);
}

Tensor real_spectrum_composed(const Tensor& half, int64_t width, at::ScalarType type) {
  const auto some = torch::real(half);
  const auto again = some.narrow(2, 1, width - half.size(2));
  const auto others = torch::cat({again.slice(1, 0, 1).flip(2), again.slice(1, 1).flip({1, 2})}, 1);
  return torch::cat({some, others}, 2).to(type);
}

Tensor real_spectrum(const Tensor& half, int64_t width, at::ScalarType type) {
  static const auto operation =
      ops::typed_operator<Tensor(const Tensor&, int64_t, at::ScalarType)>("dba::real_spectrum");
  return operation.call(half, width, type);
}

}  // namespace dba::zoo
