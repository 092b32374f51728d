#include "ops/cpu/core_pass.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "ops/cpu/core_mix.h"
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
  CoreResult result{at::empty({batch, heads * packed.d_p, packed.d_out}, c.options()),
                    at::empty({batch, packed.d_p, heads * packed.first.width()}, c.options())};
  T* const m = result.m.mutable_data_ptr<T>();
  T* const compressed = result.c.mutable_data_ptr<T>();
  const CoreStacks stacks(batch, packed.d_p);
  at::parallel_for(0, stacks.count(), 1, [&](int64_t from, int64_t to) {
    CoreMix<T> mix(k, packed, masks, stacks.most_sequences());
    for (auto i = from; i < to; ++i) {
      const auto first = stacks.first(i);
      mix.run(c.const_data_ptr<T>() + first * c.size(1) * c.size(2), r.const_data_ptr<T>() + first * c.size(1), first,
              stacks.first(i + 1) - first, compressed + first * result.c.size(1) * result.c.size(2),
              m + first * result.m.size(1) * result.m.size(2));
    }
  });
  return result;
}

}  // namespace

CoreStacks::CoreStacks(int64_t batch, int64_t d_p) : batch_(batch) {
  constexpr int64_t kThreads = 8;  // as many, or half, or a quarter of them find the same work each
  const auto most = most_stacked(d_p);
  const auto least = (batch + most - 1) / most;
  count_ = std::min(batch, (least + kThreads - 1) / kThreads * kThreads);
}

CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout) {
  return in_accumulation_type(c.scalar_type(),
                              [&](auto zero) { return core_as<decltype(zero)>(c, r, weights, heads, dropout); });
}

}  // namespace dba::ops::cpu
