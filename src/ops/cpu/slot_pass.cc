#include "ops/checks.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/row_sums.h"
#include "ops/cpu/slot_task.h"
#include "ops/cpu/turns.h"

namespace dba::ops::cpu {
namespace {

template <class T>
std::pair<at::Tensor, at::Tensor> slot_pass_as(const at::Tensor& x, const Sequences& sequences,
                                               const reference::RestoreBackward& given) {
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x), dy(given.dy);
  const auto width = dy.width();
  const RowGroups<T> groups(k, given.rows, /*plain=*/false);
  const auto& rows = groups.groups()[0];
  const MaskSource<T> masks(given.dropout, kSiteRestore);
  const WorkPlan plan(sequences.begin, sequences.end, rows.count * width);
  const SlotProblem<T> problem{k, tokens, dy, rows, masks, given.heads, given.linear};
  RowSums<T> dm(k, plan, sequences.count(), rows.count, width, /*each=*/true);
  const OutBiasSums<T> dout_bias(k, plan.units(), width);
  share_out(plan.units(), 1, [&](Turns& turns) {
    Scratch scratch;
    const auto own = dm.make(scratch);
    SlotTask<T> task(problem);
    for (int64_t unit = 0, end = 0; turns.next(unit, end);) {
      for (; unit < end; ++unit) {
        const auto u = static_cast<size_t>(unit);
        for (auto i = plan.first_segment[u]; i < plan.first_segment[u + 1]; ++i) {
          const auto& segment = plan.segments[static_cast<size_t>(i)];
          const auto& target = dm.target(segment, unit, own);
          dm.clear_bias(target);
          task.run(segment, target.sums, dout_bias.of_unit(unit));
          dm.finish(segment, target);
        }
      }
    }
  });
  Totals<T> totals(k);
  dm.merge(totals);
  totals.make();
  return {dm.sums(), dout_bias.total()};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> slot_pass(const at::Tensor& x, const Sequences& sequences,
                                            const reference::RestoreBackward& restore) {
  return in_accumulation_type(accumulation_type(x.scalar_type()),
                              [&](auto zero) { return slot_pass_as<decltype(zero)>(x, sequences, restore); });
}

}  // namespace dba::ops::cpu
