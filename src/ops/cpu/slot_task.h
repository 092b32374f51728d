#pragma once

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "ops/cpu/restore_tile.h"

namespace dba::ops::cpu {

/// What the gradient of M is made from.
template <class T>
struct SlotProblem {
  const Kernels<T>& kernels;
  const TokenMatrix<T>&x, &dy;
  const RowGroup<T>& rows;
  const MaskSource<T>& masks;
  int64_t heads;
  bool linear;
};

/// One thread's part of the pass that gives M its gradient.
template <class T>
class SlotTask {
 public:
  explicit SlotTask(const SlotProblem<T>& problem)
      : problem_(problem),
        tile_(scratch_.panels(problem.kernels, kTile, problem.x.width())),
        dy_tile_(scratch_.panels(problem.kernels, kTile, problem.dy.width())),
        restore_(problem.kernels, problem.rows, problem.heads, problem.linear, problem.masks, /*plain=*/false,
                 scratch_) {}

  void keep_in(KeptWeights<T>* kept) {
    restore_.keep_in(kept, /*weighed=*/false);
  }
  void take_from(KeptTiles<T> left) {
    restore_.take_from(left);
  }
  /// dm (H·d_p × d_out) becomes that of the segment; bias_sum gains the sum of dY over its tokens.
  void run(const Segment& segment, Panels<T> dm, T* bias_sum) {
    const auto& k = problem_.kernels;
    const auto width = problem_.dy.width();
    restore_.prepare(segment.sequence);
    const auto tile = segment.tile();
    for (int64_t first = 0; first < segment.tokens; first += tile) {
      const auto count = std::min(tile, segment.tokens - first);
      const auto row = segment.first_row + first;
      const auto dy = problem_.dy.factor(k, row, count, dy_tile_);
      const auto x = restore_.computes() ? problem_.x.left_factor(k, row, count, tile_) : kNothing<T>;
      restore_.weigh(segment, x, first, count, /*dropped=*/true, problem_.x.ahead(row + count, tile));
      k.multiply_transposed_ahead(restore_.weights(), dy, dm, problem_.rows.count, width, count,
                                  /*add=*/first > 0, problem_.dy.ahead(row + count, tile));
      k.add_rows(dy, bias_sum, count, width);
    }
  }

 private:
  const SlotProblem<T>& problem_;
  Scratch scratch_;
  Panels<T> tile_, dy_tile_;
  RestoreTile<T> restore_;
};

/// The gradient of the output's bias, a sum of dY for each unit of work.
template <class T>
class OutBiasSums {
 public:
  OutBiasSums(const Kernels<T>& kernels, int64_t units, int64_t width)
      : units_(units),
        width_(width),
        columns_(padded_columns(kernels, width)),
        sums_(scratch_.zeros<T>(units * columns_)) {}
  T* of_unit(int64_t unit) const {
    return sums_ + unit * columns_;
  }
  at::Tensor total() const {
    auto result = at::zeros({width_}, c10::CppTypeToScalarType<T>::value);
    T* const to = result.template mutable_data_ptr<T>();
    for (int64_t unit = 0; unit < units_; ++unit) {
      for (int64_t j = 0; j < width_; ++j) {
        to[j] += of_unit(unit)[j];
      }
    }
    return result;
  }

 private:
  Scratch scratch_;
  int64_t units_, width_, columns_;
  T* sums_;
};

}  // namespace dba::ops::cpu
