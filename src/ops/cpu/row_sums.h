#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "ops/cpu/totals.h"
#include "ops/cpu/work_plan.h"

namespace dba::ops::cpu {

/// A (count × width) matrix of sums over tokens, with one more sum per row: the gradient of some rows and their bias.
template <class T>
struct RowSum {
  Panels<T> sums;
  T* bias;  // one entry per row, padded to whole panels
};

/// Such sums for rows that each sequence has of its own or that all share. Whatever is spread over several units is
/// kept apart and added up in order at the end.
template <class T>
class RowSums {
 public:
  RowSums(const Kernels<T>& kernels, const WorkPlan& plan, int64_t batch, int64_t count, int64_t width, bool each)
      : kernels_(kernels), plan_(plan), each_(each), count_(count), width_(width) {
    constexpr auto type = c10::CppTypeToScalarType<T>::value;
    sums_ = each ? at::empty({batch, count, width}, type) : at::empty({count, width}, type);
    bias_ = each ? at::empty({batch, count}, type) : at::empty({count}, type);
    for (int64_t i = 0; i < (each ? plan.parts : plan.units()); ++i) {
      kept_.push_back(make(scratch_, /*in_place=*/!each && i == 0));
    }
  }

  /// For a thread, to sum up whole sequences in; or, for one unit of work, where the total goes if its width allows it.
  RowSum<T> make(Scratch& scratch, bool in_place = false) const {
    return {in_place && width_ % kernels_.lanes == 0
                ? Panels<T>{sums_.template mutable_data_ptr<T>(), kernels_.panel, width_}
                : scratch.panels(kernels_, count_, width_),
            scratch.take<T>(padded_columns(kernels_, count_))};
  }
  /// Where the sums of a segment go; `own` is the thread's.
  const RowSum<T>& target(const Segment& segment, int64_t unit, const RowSum<T>& own) const {
    return !each_              ? kept_[static_cast<size_t>(unit)]
           : segment.part >= 0 ? kept_[static_cast<size_t>(segment.part)]
                               : own;
  }
  /// Whether the segment's first tile begins a new sum.
  bool begins(const Segment& segment, int64_t unit) const {
    return each_ || &segment == &plan_.segments[static_cast<size_t>(plan_.first_segment[static_cast<size_t>(unit)])];
  }
  void clear_bias(const RowSum<T>& sum) const {
    std::fill_n(sum.bias, padded_columns(kernels_, count_), T(0));
  }
  /// Called when a segment is through.
  void finish(const Segment& segment, const RowSum<T>& sum) {
    if (each_ && segment.part < 0) {
      kernels_.unpack(fixed(sum.sums), nullptr, rows_of(segment.sequence), width_, count_, width_);
      std::copy_n(sum.bias, count_, bias_of(segment.sequence));
    }
  }
  /// Called when all are through; the totals are still to be made.
  void merge(Totals<T>& totals) {
    if (!each_) {
      add(totals, 0, static_cast<int64_t>(kept_.size()), 0);
      return;
    }
    for (const auto& split : plan_.splits) {
      add(totals, split.first_part, split.parts, split.sequence);
    }
    for (const auto sequence : plan_.empty) {
      std::fill_n(rows_of(sequence), count_ * width_, T(0));
      std::fill_n(bias_of(sequence), count_, T(0));
    }
  }

  const at::Tensor& sums() const {
    return sums_;
  }
  const at::Tensor& bias() const {
    return bias_;
  }

 private:
  T* rows_of(int64_t sequence) {
    return sums_.mutable_data_ptr<T>() + sequence * count_ * width_;
  }
  T* bias_of(int64_t sequence) {
    return bias_.mutable_data_ptr<T>() + sequence * count_;
  }
  void add(Totals<T>& totals, int64_t first, int64_t kept, int64_t sequence) {
    std::vector<Panels<T>> sums;
    std::vector<T*> biases;
    for (auto n = first; n < first + kept; ++n) {
      sums.push_back(kept_[static_cast<size_t>(n)].sums);
      biases.push_back(kept_[static_cast<size_t>(n)].bias);
    }
    totals.add(std::move(sums), count_, width_, rows_of(sequence), width_);
    totals.add(biases, count_, bias_of(sequence));
  }

  const Kernels<T>& kernels_;
  const WorkPlan& plan_;
  bool each_;
  int64_t count_, width_;
  Scratch scratch_;
  std::vector<RowSum<T>> kept_;
  at::Tensor sums_, bias_;
};

}  // namespace dba::ops::cpu
