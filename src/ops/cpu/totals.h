#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/cpu/scratch.h"
#include "ops/cpu/turns.h"

namespace dba::ops::cpu {

/// Sums of matrices, each over the units of work that made a part of it, in their order. All are made at once, a few
/// rows of one panel at a time, which lie together in panelled parts.
template <class T>
class Totals {
 public:
  explicit Totals(const Kernels<T>& kernels) : panel_(kernels.panel) {}

  /// `to` (rows × columns), its rows `row_stride` apart, becomes the sum of the parts. The first may lie there already.
  void add(std::vector<Panels<T>> parts, int64_t rows, int64_t columns, T* to, int64_t row_stride) {
    if (parts.size() == 1 && parts.front().entries == to) {
      return;
    }
    totals_.push_back({std::move(parts), rows, columns, to, row_stride});
    for (int64_t row = 0; row < rows; row += kRows) {
      blocks_.push_back({totals_.size() - 1, row});
    }
  }
  /// The same of one row.
  void add(const std::vector<T*>& parts, int64_t columns, T* to) {
    std::vector<Panels<T>> rows;
    for (T* const part : parts) {
      rows.push_back({part, panel_, panel_});
    }
    add(std::move(rows), 1, columns, to, columns);
  }

  void make() const {
    constexpr int64_t kLeastBlocks = 8;
    share_out(static_cast<int64_t>(blocks_.size()), kLeastBlocks, [&](Turns& turns) {
      for (int64_t i = 0, end = 0; turns.next(i, end);) {
        for (; i < end; ++i) {
          make(blocks_[static_cast<size_t>(i)]);
        }
      }
    });
  }

 private:
  static constexpr int64_t kRows = 16;

  struct Total {
    std::vector<Panels<T>> parts;
    int64_t rows, columns;
    T* to;
    int64_t row_stride;
  };
  struct Block {
    size_t total;
    int64_t first_row;
  };

  void make(const Block& block) const {
    const auto& total = totals_[block.total];
    const auto rows = std::min(kRows, total.rows - block.first_row);
    for (int64_t column = 0; column < total.columns; column += panel_) {
      const auto columns = std::min(panel_, total.columns - column);
      T sum[kRows * kWidestPanel] = {};
      for (const auto& part : total.parts) {
        for (int64_t i = 0; i < rows; ++i) {
          const T* const from = part.entries + column / panel_ * part.stride + (block.first_row + i) * part.row;
          for (int64_t j = 0; j < columns; ++j) {
            sum[i * panel_ + j] += from[j];
          }
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        std::copy_n(sum + i * panel_, columns, total.to + (block.first_row + i) * total.row_stride + column);
      }
    }
  }

  int64_t panel_;
  std::vector<Total> totals_;
  std::vector<Block> blocks_;
};

}  // namespace dba::ops::cpu
