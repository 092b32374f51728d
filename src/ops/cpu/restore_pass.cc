#include <ATen/ops/empty.h>

#include "ops/checks.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/restore_task.h"
#include "ops/cpu/turns.h"

namespace dba::ops::cpu {
namespace {

template <class T>
at::Tensor restore_as(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const at::Tensor& m,
                      const at::Tensor& out_bias, int64_t heads, bool linear, const Dropout& dropout) {
  constexpr auto type = c10::CppTypeToScalarType<T>::value;
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x);
  const RowGroups<T> groups(k, rows, /*plain=*/false);
  const MaskSource<T> masks(dropout, kSiteRestore);
  const WorkPlan plan(sequences.begin, sequences.end, 0);
  const at::Tensor mix = m.to(type).contiguous();
  auto y = at::empty({x.size(0), m.size(2)}, x.options());
  const TokenMatrix<T> out(y);
  out.clear_rows_of_nobody(plan.begin, plan.end);
  const RestoreProblem<T> problem{
      k,     tokens, out,    groups.groups()[0],
      masks, heads,  linear, out_bias.defined() ? out_bias.to(type).contiguous() : out_bias};
  share_out(plan.units(), 1, [&](Turns& turns) {
    RestoreTask<T> task(problem);
    for (int64_t from = 0, to = 0; turns.next(from, to);) {
      const auto end = plan.first_segment[static_cast<size_t>(to)];
      for (auto i = plan.first_segment[static_cast<size_t>(from)]; i < end; ++i) {
        const auto& segment = plan.segments[static_cast<size_t>(i)];
        task.run(segment, mix.const_data_ptr<T>() + segment.sequence * mix.stride(0));
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
