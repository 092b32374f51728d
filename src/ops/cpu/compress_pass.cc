#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/cpu/mask_source.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/row_groups.h"
#include "ops/cpu/token_matrix.h"
#include "ops/cpu/work_plan.h"

namespace dba::ops::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What a run of tokens says of every score row. The sums are still to be divided.
template <class T>
struct Partial {
  RunningRows<T> rows;  // one entry per column
  Panels<T> sums;       // (slots × d) Σ weight · token

  Partial(const Kernels<T>& kernels, const RowGroups<T>& groups, int64_t width, Scratch& scratch)
      : rows{scratch.take<T>(groups.columns()), scratch.take<T>(groups.columns()), scratch.take<T>(groups.columns()),
             scratch.take<T>(groups.columns())},
        sums(scratch.panels(kernels, groups.slots(), width)) {}
};

template <class T>
struct Problem {
  const Kernels<T>& kernels;
  const TokenMatrix<T>& x;
  const RowGroups<T>& groups;
  const MaskSource<T>& masks;
};

/// One thread's tiles and what it packs for the sequence at hand.
template <class T>
class Task {
 public:
  explicit Task(const Problem<T>& problem)
      : problem_(problem),
        tile_(scratch_.panels(problem.kernels, kTile, problem.x.width())),
        scores_(scratch_.panels(problem.kernels, kTile, problem.groups.columns())),
        mask_(scratch_.panels(problem.kernels, problem.masks.active() ? kTile : 0, problem.groups.columns())),
        bias_(scratch_.zeros<T>(problem.groups.columns())),
        whole_(problem.kernels, problem.groups, problem.x.width(), scratch_) {
    for (const auto& group : problem.groups.groups()) {
      packed_.emplace_back(problem.kernels, group, /*plain=*/false, scratch_);
    }
  }

  const Partial<T>& whole() const {
    return whole_;
  }

  void run(const Segment& segment, const Partial<T>& partial) {
    const auto& k = problem_.kernels;
    const auto columns = problem_.groups.columns();
    std::fill_n(partial.rows.largest, columns, static_cast<T>(-kInfinity));
    std::fill_n(partial.rows.sum, columns, T(0));
    std::fill_n(partial.rows.r, columns, T(0));
    for (auto& rows : packed_) {
      rows.prepare(segment.sequence);
      rows.group().put_bias(segment.sequence, bias_);
    }
    for (int64_t first = 0; first < segment.tokens; first += kTile) {
      const auto tokens = std::min(kTile, segment.tokens - first);
      problem_.x.load(k, segment.first_row + first, tokens, tile_);
      for (const auto& rows : packed_) {
        add_tile(segment, rows, first, tokens, partial);
      }
    }
  }

 private:
  void add_tile(const Segment& segment, const PackedRows<T>& rows, int64_t first, int64_t tokens,
                const Partial<T>& partial) {
    const auto& k = problem_.kernels;
    const auto& group = rows.group();
    const auto width = problem_.x.width();
    const auto column = group.first_column;
    const auto scores = from_column(k, scores_, column);
    k.multiply(fixed(tile_), rows.transposed(), scores, tokens, group.count, width, /*add=*/false);
    const auto mask = problem_.masks.draw(k, from_column(k, mask_, column), segment.sequence,
                                          segment.first_token + first, tokens, group.first_slot, group.count);
    const auto& of_rows = partial.rows;
    const RunningRows<T> running{of_rows.largest + column, of_rows.sum + column, of_rows.r + column,
                                 of_rows.factor + column};
    const bool rescale =
        k.compress_weights(scores, mask, bias_ + column, running, problem_.groups.first_linear(group),
                           static_cast<T>(1.0 / static_cast<double>(segment.length)), tokens, group.count);
    const auto sums = from_row(partial.sums, group.first_slot);
    if (rescale && first > 0) {
      k.scale_rows(sums, running.factor, group.count, width);
    }
    k.multiply_transposed(fixed(scores), fixed(tile_), sums, group.count, width, tokens, /*add=*/first > 0);
  }

  const Problem<T>& problem_;
  Scratch scratch_;
  Panels<T> tile_, scores_, mask_;
  T* bias_;
  Partial<T> whole_;
  std::vector<PackedRows<T>> packed_;
};

/// The summary's tensors, written sequence by sequence.
template <class T>
class Output {
 public:
  Output(const at::Tensor& x, const Problem<T>& problem, int64_t batch)
      : problem_(problem), slots_(problem.groups.slots()), width_(problem.x.width()) {
    const auto options = x.options().dtype(c10::CppTypeToScalarType<T>::value);
    summary_ = {at::empty({batch, slots_, width_}, options), at::empty({batch, slots_}, options),
                at::empty({batch, slots_}, options)};
    c_ = summary_.c.mutable_data_ptr<T>();
    r_ = summary_.r.mutable_data_ptr<T>();
    lse_ = summary_.lse.mutable_data_ptr<T>();
  }

  void put_empty(int64_t sequence) const {
    std::fill_n(c_ + sequence * slots_ * width_, slots_ * width_, T(0));
    std::fill_n(r_ + sequence * slots_, slots_, T(0));
    std::fill_n(lse_ + sequence * slots_, slots_, static_cast<T>(-kInfinity));
  }

  void put_whole(int64_t sequence, int64_t length, const Partial<T>& partial) const {
    std::vector<T> divisors(static_cast<size_t>(slots_));
    for (const auto& group : problem_.groups.groups()) {
      for (int64_t j = 0; j < group.count; ++j) {
        const auto column = group.first_column + j;
        divisors[static_cast<size_t>(group.first_slot + j)] =
            put_row(sequence, length, group.first_slot + j, partial.rows.largest[column], partial.rows.sum[column],
                    partial.rows.r[column]);
      }
    }
    problem_.kernels.unpack(fixed(partial.sums), divisors.data(), c_ + sequence * slots_ * width_, width_, slots_,
                            width_);
  }

  /// Slot `slot` of a split sequence, whose parts are merged in order.
  void put_merged(int64_t sequence, int64_t length, int64_t slot, const Partial<T>* parts, int64_t count) const {
    const auto& groups = problem_.groups.groups();
    const auto& group = groups.size() > 1 && slot >= groups[1].first_slot ? groups[1] : groups[0];
    const auto column = group.first_column + slot - group.first_slot;
    const bool linear = slot >= problem_.groups.first_linear();
    T largest = static_cast<T>(-kInfinity);
    for (int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, parts[i].rows.largest[column]);
    }
    std::vector<T> share(static_cast<size_t>(count), T(1));
    T sum = 0, r = 0;
    for (int64_t i = 0; i < count; ++i) {
      auto& part = share[static_cast<size_t>(i)];
      if (!linear) {
        part = largest == static_cast<T>(-kInfinity) ? T(0) : std::exp(parts[i].rows.largest[column] - largest);
      }
      sum += part * parts[i].rows.sum[column];
      r += part * parts[i].rows.r[column];
    }
    const T divisor = put_row(sequence, length, slot, largest, sum, r);
    T* const row = c_ + (sequence * slots_ + slot) * width_;
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
  /// r and lse of a row; returns what its sum of tokens is divided by.
  T put_row(int64_t sequence, int64_t length, int64_t slot, T largest, T sum, T r) const {
    const auto at = sequence * slots_ + slot;
    if (slot >= problem_.groups.first_linear()) {
      r_[at] = r;
      lse_[at] = static_cast<T>(std::log(static_cast<double>(length)));
      return T(1);
    }
    const T divisor = sum == T(0) ? T(1) : sum;
    r_[at] = r / divisor;
    lse_[at] = largest + std::log(sum);
    return divisor;
  }

  const Problem<T>& problem_;
  int64_t slots_, width_;
  Summary summary_;
  T *c_, *r_, *lse_;
};

template <class T>
Summary compress_as(const at::Tensor& x, const Sequences& sequences, const ScoreRows& score_rows,
                    const Dropout& dropout) {
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x);
  const RowGroups<T> groups(k, score_rows, /*plain=*/false);
  const MaskSource<T> masks(dropout, kSiteCompress);
  const Problem<T> problem{k, tokens, groups, masks};
  const WorkPlan plan(sequences.begin, sequences.end, groups.slots() * tokens.width());
  const Output<T> output(x, problem, sequences.count());

  Scratch scratch;
  std::vector<Partial<T>> parts;
  for (int64_t i = 0; i < plan.parts; ++i) {
    parts.emplace_back(k, groups, tokens.width(), scratch);
  }
  at::parallel_for(0, plan.units(), 1, [&](int64_t from, int64_t to) {
    Task<T> task(problem);
    for (auto i = plan.first_segment[static_cast<size_t>(from)]; i < plan.first_segment[static_cast<size_t>(to)]; ++i) {
      const auto& segment = plan.segments[static_cast<size_t>(i)];
      if (segment.part >= 0) {
        task.run(segment, parts[static_cast<size_t>(segment.part)]);
      } else {
        task.run(segment, task.whole());
        output.put_whole(segment.sequence, segment.length, task.whole());
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
    output.put_empty(sequence);
  }
  return output.summary();
}

}  // namespace

Summary compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout) {
  return in_accumulation_type(accumulation_type(x.scalar_type()),
                              [&](auto zero) { return compress_as<decltype(zero)>(x, sequences, rows, dropout); });
}

}  // namespace dba::ops::cpu
