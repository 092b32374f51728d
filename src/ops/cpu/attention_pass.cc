#include "ops/cpu/attention_pass.h"

#include <ATen/ops/empty.h>

#include "ops/checks.h"
#include "ops/cpu/compress_task.h"
#include "ops/cpu/core_mix.h"
#include "ops/cpu/kept_sizes.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/restore_task.h"
#include "ops/cpu/turns.h"
#include "ops/cpu/unit_size.h"

namespace dba::ops::cpu {
namespace {

template <class T>
std::optional<AttentionOutputs> attention_as(const AttentionArguments& given, bool keep) {
  const WorkPlan plan(given.sequences.begin, given.sequences.end, 0);
  if (!plan.splits.empty()) {
    return std::nullopt;
  }
  constexpr auto type = c10::CppTypeToScalarType<T>::value;
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(given.x);
  const RowGroups<T> groups(k, given.rows, /*plain=*/false);
  const RowGroups<T> restore_groups(k, reference::restore_score_rows(given.restore_rows, given.restore_bias),
                                    /*plain=*/false);
  const MaskSource<T> compress_masks(given.dropout, kSiteCompress), core_masks(given.dropout, kSiteCore),
      restore_masks(given.dropout, kSiteRestore);
  const auto batch = given.sequences.count();
  const auto rows = groups.slots(), width = tokens.width();
  const PackedCore<T> core(k, given.weights, given.heads, rows, width, /*backward=*/false);
  const auto slots = core.heads * core.d_p;
  const auto of_compressed = core.d_p * core.heads * core.first.width();

  const auto options = given.x.options().dtype(type);
  AttentionOutputs out;
  out.y = at::empty({given.x.size(0), core.d_out}, given.x.options());
  out.compressed = at::empty({batch, core.d_p, core.heads * core.first.width()}, options);
  SummaryOfSequence<T> summary{};
  T* m = nullptr;
  const auto sizes = kept_sizes(k, given, core);
  KeptSteps<T> kept;
  if (keep) {
    const StepsOrigin origin(given, plan);
    const auto bytes = sizes.numbers() * static_cast<int64_t>(sizeof(T));
    out.summary = {empty_with_steps({batch, rows, width}, type, bytes, origin), at::empty({batch, rows}, options),
                   at::empty({batch, rows}, options)};
    out.m = at::empty({batch, slots, core.d_out}, options);
    summary = {out.summary.c.template mutable_data_ptr<T>(), out.summary.r.template mutable_data_ptr<T>(),
               out.summary.lse.template mutable_data_ptr<T>()};
    m = out.m.template mutable_data_ptr<T>();
    kept = {steps_with(out.summary.c, origin), sizes};
  }
  T* const compressed = out.compressed.template mutable_data_ptr<T>();
  const TokenMatrix<T> y(out.y);
  y.clear_rows_of_nobody(plan.begin, plan.end);
  for (const auto sequence : plan.empty) {
    std::fill_n(compressed + sequence * of_compressed, of_compressed, T(0));
    if (keep) {
      summary.after(sequence, rows, width).put_empty(rows, width);
      std::fill_n(m + sequence * slots * core.d_out, slots * core.d_out, T(0));
    }
  }

  const CompressProblem<T> of_compress{k, tokens, groups, compress_masks, kept.scores};
  const RestoreProblem<T> of_restore{k,
                                     tokens,
                                     y,
                                     restore_groups.groups()[0],
                                     restore_masks,
                                     given.heads,
                                     given.linear,
                                     given.out_bias.defined() ? given.out_bias.to(type).contiguous() : at::Tensor(),
                                     kept.weights};
  const StackPlan stacks(plan, core.d_p);
  share_out(static_cast<int64_t>(stacks.stacks.size()), 1, [&](Turns& turns) {
    Scratch scratch;
    CompressTask<T> compress(of_compress);
    CoreMix<T> mix(k, core, core_masks, stacks.largest);
    RestoreTask<T> restore(of_restore);
    const auto own = [&](int64_t count) { return scratch.take<T>(keep ? 0 : stacks.largest * count); };
    const SummaryOfSequence<T> own_summary{own(rows * width), own(rows), own(rows)};
    T* const own_m = own(slots * core.d_out);
    for (int64_t s = 0, end = 0; turns.next(s, end);) {
      for (; s < end; ++s) {
        const auto& stack = stacks.stacks[static_cast<size_t>(s)];
        const auto* const segments = &plan.segments[static_cast<size_t>(stack.first_segment)];
        const auto first = segments->sequence;
        const auto at = keep ? summary.after(first, rows, width) : own_summary;
        T* const m_at = keep ? m + first * slots * core.d_out : own_m;
        for (int64_t i = 0; i < stack.count; ++i) {
          compress.run(segments[i], at.after(i, rows, width));
        }
        mix.run(at.c, at.r, first, stack.count, compressed + first * of_compressed, m_at,
                kept.projections == nullptr ? nullptr : kept.projections + first * sizes.of_sequence);
        for (int64_t i = 0; i < stack.count; ++i) {
          restore.run(segments[i], m_at + i * slots * core.d_out);
        }
      }
    }
  });
  return out;
}

}  // namespace

std::optional<AttentionOutputs> attention(const AttentionArguments& arguments, bool keep) {
  return in_accumulation_type(accumulation_type(arguments.x.scalar_type()),
                              [&](auto zero) { return attention_as<decltype(zero)>(arguments, keep); });
}

StackPlan::StackPlan(const WorkPlan& plan, int64_t d_p) {
  const auto most = std::max<int64_t>(kRowsOfStack / d_p, 1);
  for (size_t unit = 0; unit + 1 < plan.first_segment.size(); ++unit) {
    first_stack.push_back(static_cast<int64_t>(stacks.size()));
    const auto end = plan.first_segment[unit + 1];
    for (auto first = plan.first_segment[unit]; first < end;) {
      const auto* const segments = &plan.segments[static_cast<size_t>(first)];
      int64_t run = 1;
      while (first + run < end && segments[run].sequence == segments->sequence + run) {
        ++run;
      }
      const auto count = (run + most - 1) / most;
      for (int64_t i = 0; i < count; ++i) {
        const auto from = i * run / count;
        stacks.push_back({first + from, (i + 1) * run / count - from});
        largest = std::max(largest, stacks.back().count);
      }
      first += run;
    }
  }
  first_stack.push_back(static_cast<int64_t>(stacks.size()));
}

}  // namespace dba::ops::cpu
