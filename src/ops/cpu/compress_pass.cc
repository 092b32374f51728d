#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "ops/checks.h"
#include "ops/cpu/compress_task.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/turns.h"

namespace dba::ops::cpu {
namespace {

/// The summary's tensors, written sequence by sequence.
template <class T>
class Output {
 public:
  Output(const at::Tensor& x, const CompressProblem<T>& problem, int64_t batch)
      : problem_(problem), slots_(problem.groups.slots()), width_(problem.x.width()) {
    const auto options = x.options().dtype(c10::CppTypeToScalarType<T>::value);
    summary_ = {at::empty({batch, slots_, width_}, options), at::empty({batch, slots_}, options),
                at::empty({batch, slots_}, options)};
    first_ = {summary_.c.mutable_data_ptr<T>(), summary_.r.mutable_data_ptr<T>(), summary_.lse.mutable_data_ptr<T>()};
  }

  SummaryOfSequence<T> of_sequence(int64_t sequence) const {
    return first_.after(sequence, slots_, width_);
  }

  /// Slot `slot` of a split sequence, whose parts are merged in order.
  void put_merged(int64_t sequence, int64_t length, int64_t slot, const Partial<T>* parts, int64_t count) const {
    const auto& groups = problem_.groups.groups();
    const auto& group = groups.size() > 1 && slot >= groups[1].first_slot ? groups[1] : groups[0];
    const auto column = group.first_column + slot - group.first_slot;
    const bool linear = slot >= problem_.groups.first_linear();
    T largest = kLowest<T>;
    for (int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, parts[i].rows.largest[column]);
    }
    std::vector<T> share(static_cast<size_t>(count), T(1));
    T sum = 0, r = 0;
    for (int64_t i = 0; i < count; ++i) {
      auto& part = share[static_cast<size_t>(i)];
      if (!linear) {
        part = largest == kLowest<T> ? T(0) : std::exp(parts[i].rows.largest[column] - largest);
      }
      sum += part * parts[i].rows.sum[column];
      r += part * parts[i].rows.r[column];
    }
    const auto to = of_sequence(sequence);
    const T divisor = to.put_row(slot, linear, length, largest, sum, r);
    T* const row = to.c + slot * width_;
    std::fill_n(row, width_, T(0));
    for (int64_t i = 0; i < count; ++i) {
      const auto factor = share[static_cast<size_t>(i)];
      const auto panel = problem_.kernels.panel;
      for (int64_t first = 0; first < width_; first += panel) {
        const T* const from = parts[i].sums.entries + first / panel * parts[i].sums.stride + slot * panel;
        const auto columns = std::min(panel, width_ - first);
        for (int64_t j = 0; j < columns; ++j) {
          row[first + j] += factor * from[j];
        }
      }
    }
    for (int64_t j = 0; j < width_; ++j) {
      row[j] /= divisor;
    }
  }

  const Summary& summary() const {
    return summary_;
  }

 private:
  const CompressProblem<T>& problem_;
  int64_t slots_, width_;
  Summary summary_;
  SummaryOfSequence<T> first_;
};

template <class T>
Summary compress_as(const at::Tensor& x, const Sequences& sequences, const ScoreRows& score_rows,
                    const Dropout& dropout) {
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x);
  const RowGroups<T> groups(k, score_rows, /*plain=*/false);
  const MaskSource<T> masks(dropout, kSiteCompress);
  const CompressProblem<T> problem{k, tokens, groups, masks};
  const WorkPlan plan(sequences.begin, sequences.end, groups.slots() * tokens.width());
  const Output<T> output(x, problem, sequences.count());

  Scratch scratch;
  std::vector<Partial<T>> parts;
  for (int64_t i = 0; i < plan.parts; ++i) {
    parts.emplace_back(k, groups, tokens.width(), scratch);
  }
  share_out(plan.units(), 1, [&](Turns& turns) {
    CompressTask<T> task(problem);
    for (int64_t from = 0, to = 0; turns.next(from, to);) {
      const auto end = plan.first_segment[static_cast<size_t>(to)];
      for (auto i = plan.first_segment[static_cast<size_t>(from)]; i < end; ++i) {
        const auto& segment = plan.segments[static_cast<size_t>(i)];
        if (segment.part >= 0) {
          task.run(segment, parts[static_cast<size_t>(segment.part)]);
        } else {
          task.run(segment, output.of_sequence(segment.sequence));
        }
      }
    }
  });
  for (const auto& split : plan.splits) {
    const auto b = static_cast<size_t>(split.sequence);
    at::parallel_for(0, groups.slots(), 16, [&](int64_t from, int64_t to) {
      for (auto slot = from; slot < to; ++slot) {
        output.put_merged(split.sequence, plan.end[b] - plan.begin[b], slot,
                          &parts[static_cast<size_t>(split.first_part)], split.parts);
      }
    });
  }
  for (const auto sequence : plan.empty) {
    output.of_sequence(sequence).put_empty(groups.slots(), tokens.width());
  }
  return output.summary();
}

}  // namespace

Summary compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout) {
  return in_accumulation_type(accumulation_type(x.scalar_type()),
                              [&](auto zero) { return compress_as<decltype(zero)>(x, sequences, rows, dropout); });
}

}  // namespace dba::ops::cpu
