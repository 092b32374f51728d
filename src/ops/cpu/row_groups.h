#pragma once

#include <vector>

#include "dba/ops.h"
#include "ops/cpu/scratch.h"

namespace dba::ops::cpu {

/// Score rows that all sequences share, or that each has of its own. Their scores are neighbouring columns of a tile,
/// starting with a panel.
template <class T>
struct RowGroup {
  at::Tensor rows;  ///< (count, d) or (B, count, d) in the accumulation type, without gaps
  at::Tensor bias;  ///< (count), (B, count) or absent
  bool each;
  int64_t count;
  int64_t first_slot;            ///< among all score rows
  int64_t first_column;          ///< of the tile
  Panels<const T> transposed{};  ///< (d × count), of shared rows
  Panels<const T> plain{};       ///< (count × d), of shared rows where asked for

  const T* rows_of(int64_t sequence) const {
    return rows.const_data_ptr<T>() + (each ? sequence * count * rows.size(2) : 0);
  }
  /// Writes the bias of a sequence, or zeros, to its columns.
  void put_bias(int64_t sequence, T* columns) const {
    for (int64_t j = 0; j < count; ++j) {
      columns[first_column + j] = bias.defined() ? bias.const_data_ptr<T>()[(each ? sequence * count : 0) + j] : T(0);
    }
  }
};

/// The groups of a set of score rows; shared ones are packed once for all sequences.
template <class T>
class RowGroups {
 public:
  /// `plain`: the rows themselves are multiplied with too, as their gradient asks.
  RowGroups(const Kernels<T>& kernels, const ScoreRows& rows, bool plain) {
    add(kernels, rows.each, rows.each_bias, true, plain);
    add(kernels, rows.shared, rows.shared_bias, false, plain);
    first_linear_ = slots_ - rows.linear;
  }

  const std::vector<RowGroup<T>>& groups() const {
    return groups_;
  }
  int64_t slots() const {
    return slots_;
  }
  /// Of a tile of scores: whole panels for each group.
  int64_t columns() const {
    return columns_;
  }
  /// The first of a group's columns that is linear, counted from its own first; its count if none is.
  int64_t first_linear(const RowGroup<T>& group) const {
    return std::clamp<int64_t>(first_linear_ - group.first_slot, 0, group.count);
  }
  int64_t first_linear() const {
    return first_linear_;
  }

 private:
  void add(const Kernels<T>& kernels, const at::Tensor& rows, const at::Tensor& bias, bool each, bool plain) {
    if (!rows.defined() || rows.size(each ? 1 : 0) == 0) {
      return;
    }
    constexpr auto type = c10::CppTypeToScalarType<T>::value;
    const auto settled = [](const at::Tensor& t) { return t.defined() ? t.to(type).contiguous() : t; };
    RowGroup<T> group{settled(rows), settled(bias), each, rows.size(each ? 1 : 0), slots_, columns_};
    const auto width = rows.size(-1);
    if (!each) {
      const auto transposed = scratch_.panels(kernels, width, group.count);
      kernels.pack_transposed(group.rows_of(0), width, transposed, group.count, width);
      group.transposed = fixed(transposed);
      if (plain) {
        group.plain = right_factor(kernels, group.rows_of(0), width, group.count, width,
                                   right_factor_scratch(kernels, group.count, width, scratch_));
      }
    }
    slots_ += group.count;
    columns_ += padded_columns(kernels, group.count);
    groups_.push_back(group);
  }

  std::vector<RowGroup<T>> groups_;
  Scratch scratch_;
  int64_t slots_ = 0;
  int64_t columns_ = 0;
  int64_t first_linear_ = 0;
};

/// A group's rows packed for the sequence at hand: those of shared rows, or packed anew for each sequence.
template <class T>
class PackedRows {
 public:
  PackedRows(const Kernels<T>& kernels, const RowGroup<T>& group, bool plain, Scratch& scratch)
      : kernels_(kernels),
        group_(group),
        width_(group.rows.size(-1)),
        transposed_(group.transposed),
        plain_(group.plain) {
    if (group.each) {
      own_transposed_ = scratch.panels(kernels, width_, group.count);
      transposed_ = fixed(own_transposed_);
      with_plain_ = plain;
      own_plain_ = right_factor_scratch(kernels, plain ? group.count : 0, width_, scratch);
    }
  }
  void prepare(int64_t sequence) {
    if (!group_.each) {
      return;
    }
    kernels_.pack_transposed(group_.rows_of(sequence), width_, own_transposed_, group_.count, width_);
    if (with_plain_) {
      plain_ = right_factor(kernels_, group_.rows_of(sequence), width_, group_.count, width_, own_plain_);
    }
  }
  const RowGroup<T>& group() const {
    return group_;
  }
  Panels<const T> transposed() const {
    return transposed_;
  }
  Panels<const T> plain() const {
    return plain_;
  }

 private:
  const Kernels<T>& kernels_;
  const RowGroup<T>& group_;
  int64_t width_;
  Panels<T> own_transposed_{}, own_plain_{};
  Panels<const T> transposed_, plain_;
  bool with_plain_ = false;
};

}  // namespace dba::ops::cpu
