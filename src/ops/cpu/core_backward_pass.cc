#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "ops/cpu/core_backward.h"
#include "ops/cpu/core_pass.h"
#include "ops/cpu/passes.h"

namespace dba::ops::cpu {
namespace {

template <class T>
reference::CoreGradients core_backward_as(const at::Tensor& c_, const at::Tensor& r_, const CoreWeights& weights,
                                          int64_t heads, const Dropout& dropout, const at::Tensor& dm_,
                                          const at::Tensor& dcompressed_) {
  constexpr int64_t kMostUnits = 8;
  constexpr int64_t kMostNumbers = int64_t{1} << 22;
  const auto& k = kernels<T>();
  const auto settled = [](const at::Tensor& t) {
    return t.defined() ? t.to(c10::CppTypeToScalarType<T>::value).contiguous() : t;
  };
  const auto c = settled(c_), r = settled(r_), dm = settled(dm_), dcompressed = settled(dcompressed_);
  const auto batch = c.size(0);
  const PackedCore<T> packed(k, weights, heads, c.size(1), c.size(2), /*backward=*/true);
  const MaskSource<T> masks(dropout, kSiteCore);
  reference::CoreGradients result;
  result.dc = at::empty(c.sizes(), c.options());
  result.dr = at::empty(r.sizes(), r.options());
  auto& grad = result.weights;
  grad.other = packed.cross ? at::empty(packed.other.sizes(), packed.other.options()) : at::Tensor();

  const CoreStacks stacks(batch, packed.d_p);
  const auto most = std::clamp<int64_t>(kMostNumbers / CoreSums<T>::numbers(packed), 2, kMostUnits);
  const auto units = std::min(most, stacks.count());
  Scratch scratch;
  std::vector<CoreSums<T>> sums;
  for (int64_t i = 0; i < units; ++i) {
    sums.emplace_back(k, packed, scratch, i == 0 ? &grad : nullptr);
  }
  // The rows of a tensor that belong to the sequences from `first` on.
  const auto given = [](const at::Tensor& t, int64_t first) {
    return t.defined() ? t.const_data_ptr<T>() + first * t.stride(0) : nullptr;
  };
  const auto made = [](const at::Tensor& t, int64_t first) {
    return t.defined() ? t.mutable_data_ptr<T>() + first * t.stride(0) : nullptr;
  };
  at::parallel_for(0, units, 1, [&](int64_t from, int64_t to) {
    CoreBackward<T> backward(k, packed, masks, stacks.most_sequences());
    for (auto unit = from; unit < to; ++unit) {
      const auto first_stack = unit * stacks.count() / units;
      for (auto i = first_stack; i < (unit + 1) * stacks.count() / units; ++i) {
        const auto first = stacks.first(i);
        const CoreStack<T> stack{given(c, first),        given(r, first),           nullptr,
                                 given(dm, first),       given(dcompressed, first), made(result.dc, first),
                                 made(result.dr, first), made(grad.other, first)};
        backward.run(stack, first, stacks.first(i + 1) - first, /*add=*/i > first_stack,
                     sums[static_cast<size_t>(unit)]);
      }
    }
  });
  CoreTotals<T>(k, packed, sums).put(grad);
  return result;
}

}  // namespace

reference::CoreGradients core_backward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights,
                                       int64_t heads, const Dropout& dropout, const at::Tensor& dm,
                                       const at::Tensor& dcompressed) {
  return in_accumulation_type(c.scalar_type(), [&](auto zero) {
    return core_backward_as<decltype(zero)>(c, r, weights, heads, dropout, dm, dcompressed);
  });
}

}  // namespace dba::ops::cpu
