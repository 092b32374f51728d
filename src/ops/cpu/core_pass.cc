#include "ops/cpu/core_pass.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "ops/cpu/core_forward.h"
#include "ops/cpu/passes.h"

namespace dba::ops::cpu {
namespace {

template <class T>
CoreResult core_as(const at::Tensor& c_, const at::Tensor& r_, const CoreWeights& weights, int64_t heads,
                   const Dropout& dropout) {
  const auto& k = kernels<T>();
  const auto c = c_.contiguous();
  const auto r = r_.contiguous();
  const auto batch = c.size(0);
  const PackedCore<T> packed(k, weights, heads, c.size(1), c.size(2), /*backward=*/false);
  const MaskSource<T> masks(dropout, kSiteCore);
  const auto slots = heads * packed.d_p;
  const auto width = heads * packed.first.width();
  CoreResult result{at::empty({batch, slots, packed.d_out}, c.options()),
                    at::empty({batch, packed.d_p, width}, c.options())};
  T* const m = result.m.mutable_data_ptr<T>();
  T* const compressed = result.c.mutable_data_ptr<T>();
  const auto stack = stacked_sequences(batch, packed.d_p);
  at::parallel_for(0, (batch + stack - 1) / stack, 1, [&](int64_t from, int64_t to) {
    CoreForward<T> forward(k, packed, masks, stack, /*backward=*/false);
    const auto mix = forward.scratch.panels(k, forward.capacity, packed.d_out);
    for (auto i = from; i < to; ++i) {
      const auto first = i * stack;
      const auto count = std::min(stack, batch - first);
      forward.run(c.const_data_ptr<T>(), r.const_data_ptr<T>(), first, count);
      forward.join(forward.lifted, packed.first.width(), compressed + first * packed.d_p * width);
      for (int64_t head = 0; head < heads; ++head) {
        const auto h = static_cast<size_t>(head);
        k.multiply(fixed(forward.output_heads()[h]), packed.out_transposed[h], mix, forward.rows, packed.d_out,
                   packed.value.width(), /*add=*/false);
        for (int64_t b = 0; b < count; ++b) {
          k.unpack(fixed(forward.of_sequence(mix, b)), nullptr,
                   m + ((first + b) * slots + head * packed.d_p) * packed.d_out, packed.d_out, packed.d_p,
                   packed.d_out);
        }
      }
    }
  });
  return result;
}

}  // namespace

int64_t stacked_sequences(int64_t batch, int64_t d_p) {
  constexpr int64_t kStacks = 8;
  return std::clamp<int64_t>(std::min(kStackedRows / d_p, (batch + kStacks - 1) / kStacks), 1, kStackedRows);
}

CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout) {
  return in_accumulation_type(c.scalar_type(),
                              [&](auto zero) { return core_as<decltype(zero)>(c, r, weights, heads, dropout); });
}

}  // namespace dba::ops::cpu
