#pragma once

#include <algorithm>

#include "ops/cpu/restore_tile.h"

namespace dba::ops::cpu {

/// What restore is given besides M. `out_bias` may be absent.
template <class T>
struct RestoreProblem {
  const Kernels<T>& kernels;
  const TokenMatrix<T>&x, &y;
  const RowGroup<T>& rows;
  const MaskSource<T>& masks;
  int64_t heads;
  bool linear;
  at::Tensor out_bias;  // (d_out) in the accumulation type
  KeptTiles<T> kept{};  // where the weights stay, if they do
};

/// One thread's part of restore.
template <class T>
class RestoreTask {
 public:
  explicit RestoreTask(const RestoreProblem<T>& problem)
      : problem_(problem),
        tile_(scratch_.panels(problem.kernels, kTile, problem.x.width())),
        mix_(scratch_.panels(problem.kernels, problem.rows.count + 1, problem.y.width())),
        values_(scratch_.panels(problem.kernels, kTile, problem.y.width())),
        restore_(problem.kernels, problem.rows, problem.heads, problem.linear, problem.masks, /*plain=*/false,
                 scratch_),
        inner_(problem.rows.count) {
    if (problem.out_bias.defined()) {
      // One more row of M, whose weight is 1.
      const auto width = problem.y.width();
      problem.kernels.pack(problem.out_bias.template const_data_ptr<T>(), width, from_row(mix_, inner_), 1, width);
      ++inner_;
    }
  }

  /// m: (H·d_p, d_out) of the segment's sequence.
  void run(const Segment& segment, const T* m) {
    const auto& k = problem_.kernels;
    const auto width = problem_.y.width();
    restore_.prepare(segment.sequence);
    k.pack(m, width, mix_, problem_.rows.count, width);
    const auto tile = segment.tile();
    for (int64_t first = 0; first < segment.tokens; first += tile) {
      const auto count = std::min(tile, segment.tokens - first);
      const auto row = segment.first_row + first;
      restore_.weigh(segment, problem_.x.left_factor(k, row, count, tile_), first, count, /*dropped=*/true,
                     problem_.x.ahead(row + count, tile));
      if (problem_.kept.entries != nullptr) {
        restore_.copy_weights(problem_.kept.tile(row, count, k.panel), count);
      }
      restore_.append_ones(count);
      const auto target = problem_.y.target(k, row, values_);
      k.multiply_ahead(restore_.weights(), fixed(mix_), target, count, width, inner_, /*add=*/false,
                       problem_.y.ahead(row + count, tile));
      problem_.y.store(k, row, count, fixed(target));
    }
  }

 private:
  const RestoreProblem<T>& problem_;
  Scratch scratch_;
  Panels<T> tile_, mix_, values_;
  RestoreTile<T> restore_;
  int64_t inner_;
};

}  // namespace dba::ops::cpu
