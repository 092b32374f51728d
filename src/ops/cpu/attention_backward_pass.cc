#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/checks.h"
#include "ops/cpu/attention_pass.h"
#include "ops/cpu/core_backward.h"
#include "ops/cpu/kept_sizes.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/slot_task.h"
#include "ops/cpu/token_task.h"
#include "ops/cpu/turns.h"

namespace dba::ops::cpu {
namespace {

/// One thread's part: dM of a stack of sequences, through the core the gradient of its summaries, through both that of
/// its tokens.
template <class T>
class AttentionBackwardTask {
 public:
  AttentionBackwardTask(const SlotProblem<T>& slots, const PackedCore<T>& core, const MaskSource<T>& core_masks,
                        TokenProblem<T>& tokens, const AttentionGiven& given, const KeptSteps<T>& left,
                        const at::Tensor& dother, int64_t most)
      : k_(slots.kernels),
        core_(core),
        given_(given),
        left_(left),
        dother_(dother),
        may_keep_(!slots.masks.active() && left.weights.entries == nullptr),
        rows_(core.groups * core.heads * core.d_p),
        slots_(slots),
        backward_(k_, core, core_masks, most),
        tokens_(tokens),
        dm_in_place_(core.d_out % k_.lanes == 0),
        dm_panels_(scratch_.panels(k_, dm_in_place_ ? 0 : core.heads * core.d_p, core.d_out)),
        dm_(scratch_.template take<T>(most * core.heads * core.d_p * core.d_out)),
        dc_(scratch_.template take<T>(most * rows_ * core.d)),
        dr_(scratch_.template take<T>(most * rows_)) {
    slots_.take_from(left.weights);
    tokens_.take_from(left.weights);
  }

  void run(const Segment* segments, int64_t count, int64_t unit, bool add, const CoreSums<T>& sums, T* bias_sum) {
    const auto slots = core_.heads * core_.d_p;
    const bool kept = may_keep_ && weights_.begin(k_, segments, count, slots);
    slots_.keep_in(kept ? &weights_ : nullptr);
    tokens_.take_from(kept ? &weights_ : nullptr);
    for (int64_t i = 0; i < count; ++i) {
      T* const dm = dm_ + i * slots * core_.d_out;
      const auto target = dm_in_place_ ? Panels<T>{dm, k_.panel, core_.d_out} : dm_panels_;
      slots_.run(segments[i], target, bias_sum);
      if (!dm_in_place_) {
        k_.unpack(fixed(target), nullptr, dm, core_.d_out, slots, core_.d_out);
      }
    }
    const auto first = segments->sequence;
    const auto at = [](const at::Tensor& t, int64_t sequence) {
      return t.defined() ? t.const_data_ptr<T>() + sequence * t.stride(0) : nullptr;
    };
    const auto& [c, r, lse] = given_.summary;
    const CoreStack<T> stack{
        at(c, first),
        at(r, first),
        left_.projections == nullptr ? nullptr : left_.projections + first * core_.d_p * core_.projected_width(),
        dm_,
        at(given_.dcompressed, first),
        dc_,
        dr_,
        core_.cross ? dother_.mutable_data_ptr<T>() + first * dother_.stride(0) : nullptr};
    backward_.run(stack, first, count, add, sums);
    weights_.rewind();
    for (int64_t i = 0; i < count; ++i) {
      const auto sequence = first + i;
      tokens_.run(
          segments[i], unit,
          {at(c, sequence), at(r, sequence), at(lse, sequence), dc_ + i * rows_ * core_.d, dr_ + i * rows_, nullptr});
    }
  }

 private:
  const Kernels<T>& k_;
  const PackedCore<T>& core_;
  const AttentionGiven& given_;
  const KeptSteps<T>& left_;
  const at::Tensor& dother_;
  bool may_keep_;
  int64_t rows_;
  KeptWeights<T> weights_;
  SlotTask<T> slots_;
  CoreBackward<T> backward_;
  TokenTask<T> tokens_;
  Scratch scratch_;
  bool dm_in_place_;
  Panels<T> dm_panels_;
  T *dm_, *dc_, *dr_;
};

template <class T>
std::optional<AttentionGradients> attention_backward_as(const AttentionArguments& arguments,
                                                        const AttentionGiven& given_) {
  constexpr auto type = c10::CppTypeToScalarType<T>::value;
  const auto& k = kernels<T>();
  const auto settled = [](const at::Tensor& t) { return t.defined() ? t.to(type).contiguous() : t; };
  const AttentionGiven given{{settled(given_.summary.c), settled(given_.summary.r), settled(given_.summary.lse)},
                             settled(given_.m),
                             given_.dy,
                             settled(given_.dcompressed)};
  const TokenMatrix<T> x(arguments.x), dy(given.dy);
  const auto width = x.width();
  const PackedCore<T> core(k, arguments.weights, arguments.heads, given.summary.c.size(1), width, /*backward=*/true);
  const auto restore_rows = reference::restore_score_rows(arguments.restore_rows, arguments.restore_bias);
  const WorkPlan plan(
      arguments.sequences.begin, arguments.sequences.end,
      sums_of_tokens(arguments.rows, width) + sums_of_tokens(restore_rows, width) + CoreSums<T>::numbers(core));
  if (!plan.splits.empty()) {
    return std::nullopt;
  }

  AttentionGradients result;
  result.tokens.dx = at::empty(arguments.x.sizes(), arguments.x.options());
  const TokenMatrix<T> dx(result.tokens.dx);
  dx.clear_rows_of_nobody(plan.begin, plan.end);
  const auto batch = arguments.sequences.count();
  const reference::CompressBackward of_compress{arguments.rows, arguments.dropout, given.summary, {}, {}, {}};
  const reference::RestoreBackward of_restore{restore_rows,     given.m,           arguments.heads,
                                              arguments.linear, arguments.dropout, given.dy};
  TokenProblem<T> tokens{k, x, dx, std::nullopt, std::nullopt};
  const RowGroups<T> restore_groups(k, restore_rows, /*plain=*/false);
  const KeptSteps<T> left(steps_with(given_.summary.c, StepsOrigin(arguments, plan)), kept_sizes(k, arguments, core));
  tokens.compress.emplace(k, of_compress, plan, batch, left.scores);
  tokens.restore.emplace(k, of_restore, plan, batch);
  const MaskSource<T> restore_masks(arguments.dropout, kSiteRestore), core_masks(arguments.dropout, kSiteCore);
  const SlotProblem<T> slots{k, x, dy, restore_groups.groups()[0], restore_masks, arguments.heads, arguments.linear};
  const OutBiasSums<T> dout_bias(k, plan.units(), dy.width());
  // Sequences without tokens give nothing to the others.
  auto& dother = result.weights.other;
  dother = core.cross ? at::zeros(core.other.sizes(), core.other.options()) : at::Tensor();
  Scratch scratch;
  std::vector<CoreSums<T>> sums;
  for (int64_t i = 0; i < plan.units(); ++i) {
    sums.emplace_back(k, core, scratch, i == 0 ? &result.weights : nullptr);
  }

  const StackPlan stacks(plan, core.d_p);
  share_out(plan.units(), 1, [&](Turns& turns) {
    AttentionBackwardTask<T> task(slots, core, core_masks, tokens, given, left, dother, stacks.largest);
    for (int64_t unit = 0, end = 0; turns.next(unit, end);) {
      for (; unit < end; ++unit) {
        const auto u = static_cast<size_t>(unit);
        for (auto s = stacks.first_stack[u]; s < stacks.first_stack[u + 1]; ++s) {
          const auto& stack = stacks.stacks[static_cast<size_t>(s)];
          task.run(&plan.segments[static_cast<size_t>(stack.first_segment)], stack.count, unit,
                   /*add=*/s > stacks.first_stack[u], sums[u], dout_bias.of_unit(unit));
        }
      }
    }
  });
  tokens.put(result.tokens);
  CoreTotals<T>(k, core, sums).put(result.weights);
  result.out_bias = dout_bias.total();
  return result;
}

}  // namespace

std::optional<AttentionGradients> attention_backward(const AttentionArguments& arguments, const AttentionGiven& given) {
  return in_accumulation_type(accumulation_type(arguments.x.scalar_type()),
                              [&](auto zero) { return attention_backward_as<decltype(zero)>(arguments, given); });
}

}  // namespace dba::ops::cpu
