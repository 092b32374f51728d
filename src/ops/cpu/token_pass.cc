#include <ATen/ops/empty.h>

#include "ops/checks.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/token_task.h"
#include "ops/cpu/turns.h"

namespace dba::ops::cpu {
namespace {

template <class T>
reference::TokenGradients token_pass_as(const at::Tensor& x, const Sequences& sequences,
                                        const std::optional<reference::CompressBackward>& compress,
                                        const std::optional<reference::RestoreBackward>& restore) {
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x);
  const auto width = tokens.width();
  const WorkPlan plan(
      sequences.begin, sequences.end,
      (compress ? sums_of_tokens(compress->rows, width) : 0) + (restore ? sums_of_tokens(restore->rows, width) : 0));
  reference::TokenGradients result;
  result.dx = at::empty(x.sizes(), x.options());
  const TokenMatrix<T> out(result.dx);
  out.clear_rows_of_nobody(plan.begin, plan.end);
  TokenProblem<T> problem{k, tokens, out, std::nullopt, std::nullopt};
  if (compress) {
    problem.compress.emplace(k, *compress, plan, sequences.count());
  }
  if (restore) {
    problem.restore.emplace(k, *restore, plan, sequences.count());
  }
  share_out(plan.units(), 1, [&](Turns& turns) {
    TokenTask<T> task(problem);
    for (int64_t unit = 0, end = 0; turns.next(unit, end);) {
      for (; unit < end; ++unit) {
        const auto u = static_cast<size_t>(unit);
        for (auto i = plan.first_segment[u]; i < plan.first_segment[u + 1]; ++i) {
          const auto& segment = plan.segments[static_cast<size_t>(i)];
          task.run(segment, unit, compress ? problem.compress->of_sequence(segment.sequence) : SummaryGradient<T>{});
        }
      }
    }
  });
  problem.put(result);
  return result;
}

}  // namespace

reference::TokenGradients token_pass(const at::Tensor& x, const Sequences& sequences,
                                     const std::optional<reference::CompressBackward>& compress,
                                     const std::optional<reference::RestoreBackward>& restore) {
  return in_accumulation_type(accumulation_type(x.scalar_type()), [&](auto zero) {
    return token_pass_as<decltype(zero)>(x, sequences, compress, restore);
  });
}

}  // namespace dba::ops::cpu
