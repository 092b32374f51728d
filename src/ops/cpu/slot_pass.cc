#include <ATen/ops/zeros.h>

#include "ops/checks.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/restore_tile.h"
#include "ops/cpu/row_sums.h"

namespace dba::ops::cpu {
namespace {

template <class T>
std::pair<at::Tensor, at::Tensor> slot_pass_as(const at::Tensor& x, const Sequences& sequences,
                                               const reference::RestoreBackward& given) {
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x), dy(given.dy);
  const auto width = dy.width();
  const RowGroups<T> groups(k, given.rows, /*plain=*/false);
  const auto& group = groups.groups()[0];
  const MaskSource<T> masks(given.dropout, kSiteRestore);
  const WorkPlan plan(sequences.begin, sequences.end, group.count * width);
  RowSums<T> dm(k, plan, sequences.count(), group.count, width, /*each=*/true);
  const auto columns = padded_columns(k, width);
  Scratch of_units;
  T* const bias_of_units = of_units.zeros<T>(plan.units() * columns);

  at::parallel_for(0, plan.units(), 1, [&](int64_t from, int64_t to) {
    Scratch scratch;
    const auto tile = scratch.panels(k, kTile, tokens.width());
    const auto dy_tile = scratch.panels(k, kTile, width);
    const auto own = dm.make(scratch);
    RestoreTile<T> restore(k, group, given.heads, given.linear, masks, /*plain=*/false, scratch);
    for (auto unit = from; unit < to; ++unit) {
      const auto u = static_cast<size_t>(unit);
      for (auto i = plan.first_segment[u]; i < plan.first_segment[u + 1]; ++i) {
        const auto& segment = plan.segments[static_cast<size_t>(i)];
        const auto& target = dm.target(segment, unit, own);
        dm.clear_bias(target);
        restore.prepare(segment.sequence);
        for (int64_t first = 0; first < segment.tokens; first += kTile) {
          const auto count = std::min(kTile, segment.tokens - first);
          dy.load(k, segment.first_row + first, count, dy_tile);
          restore.weigh(segment, tokens.left_factor(k, segment.first_row + first, count, tile), first, count,
                        /*dropped=*/true);
          k.multiply_transposed(restore.weights(), fixed(dy_tile), target.sums, group.count, width, count,
                                /*add=*/first > 0);
          k.add_rows(fixed(dy_tile), bias_of_units + unit * columns, count, width);
        }
        dm.finish(segment, target);
      }
    }
  });
  dm.merge();
  auto dout_bias = at::zeros({width}, x.options().dtype(c10::CppTypeToScalarType<T>::value));
  T* const total = dout_bias.template mutable_data_ptr<T>();
  for (int64_t unit = 0; unit < plan.units(); ++unit) {
    for (int64_t j = 0; j < width; ++j) {
      total[j] += bias_of_units[unit * columns + j];
    }
  }
  return {dm.sums(), dout_bias};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> slot_pass(const at::Tensor& x, const Sequences& sequences,
                                            const reference::RestoreBackward& restore) {
  return in_accumulation_type(accumulation_type(x.scalar_type()),
                              [&](auto zero) { return slot_pass_as<decltype(zero)>(x, sequences, restore); });
}

}  // namespace dba::ops::cpu
