#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/restore_tile.h"

namespace dba::ops::cpu {
namespace {

template <class T>
at::Tensor restore_as(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const at::Tensor& m,
                      const at::Tensor& out_bias, int64_t heads, bool linear, const Dropout& dropout) {
  constexpr auto type = c10::CppTypeToScalarType<T>::value;
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x);
  const RowGroups<T> groups(k, rows, /*plain=*/false);
  const auto& group = groups.groups()[0];
  const MaskSource<T> masks(dropout, kSiteRestore);
  const WorkPlan plan(sequences.begin, sequences.end, 0);
  const at::Tensor mix = m.to(type).contiguous();
  const auto width = m.size(2);
  const at::Tensor term = out_bias.defined() ? out_bias.to(type).contiguous() : at::Tensor();
  auto y = at::empty({x.size(0), width}, x.options());
  const TokenMatrix<T> out(y);
  out.clear_rows_of_nobody(plan.begin, plan.end);

  at::parallel_for(0, plan.units(), 1, [&](int64_t from, int64_t to) {
    Scratch scratch;
    const auto tile = scratch.panels(k, kTile, tokens.width());
    // The bias of the output is one more row of M, whose weight is 1.
    const auto packed_mix = scratch.panels(k, group.count + 1, width);
    const auto inner = group.count + (term.defined() ? 1 : 0);
    if (term.defined()) {
      k.pack(term.const_data_ptr<T>(), width, from_row(packed_mix, group.count), 1, width);
    }
    const auto values = scratch.panels(k, kTile, width);
    RestoreTile<T> restore(k, group, heads, linear, masks, /*plain=*/false, scratch);
    for (auto i = plan.first_segment[static_cast<size_t>(from)]; i < plan.first_segment[static_cast<size_t>(to)]; ++i) {
      const auto& segment = plan.segments[static_cast<size_t>(i)];
      restore.prepare(segment.sequence);
      k.pack(mix.const_data_ptr<T>() + segment.sequence * group.count * width, width, packed_mix, group.count, width);
      for (int64_t first = 0; first < segment.tokens; first += kTile) {
        const auto count = std::min(kTile, segment.tokens - first);
        const auto row = segment.first_row + first;
        restore.weigh(segment, tokens.left_factor(k, row, count, tile), first, count, /*dropped=*/true);
        restore.append_ones(count);
        const auto target = out.target(k, row, values);
        k.multiply(restore.weights(), fixed(packed_mix), target, count, width, inner, /*add=*/false);
        out.store(k, row, count, fixed(target));
      }
    }
  });
  return y;
}

}  // namespace

at::Tensor restore(const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows, const at::Tensor& bias,
                   const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear,
                   const Dropout& dropout) {
  return in_accumulation_type(accumulation_type(x.scalar_type()), [&](auto zero) {
    return restore_as<decltype(zero)>(x, sequences, reference::restore_score_rows(rows, bias), m, out_bias, heads,
                                      linear, dropout);
  });
}

}  // namespace dba::ops::cpu
