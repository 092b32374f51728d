#pragma once

#include <algorithm>
#include <type_traits>

#include "ops/cpu/activate_rows.h"
#include "ops/cpu/mask_source.h"

namespace dba::ops::cpu {

constexpr int64_t kQuad = 4;
/// What PyTorch's vectorised functions get at a time: few enough that they would not share it between threads of their
/// own, and as many as that allows, for a call costs as much as some thousand entries.
constexpr int64_t kPieceEntries = 28672;

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The steps of a tile, with the memory that one thread needs for them.
template <class T>
class ActivateTile {
 public:
  using A = Wide<T>;

  ActivateTile(const MaskSource<A>& source, int64_t rows, int64_t d)
      : source_(source), kernels_(kernels<A>()), d_(d), x(take(rows * d)) {
    if (source.active()) {
      mask_ = scratch_.panels(kernels_, rows, d);
    }
  }
  /// With room for a whole panel at the end.
  A* take(int64_t count) {
    return scratch_.template take<A>(padded_columns(kernels_, count));
  }

  /// x = hidden + bias; bias may be null.
  void read(const T* hidden, const A* bias, int64_t rows) {
    widen(hidden, x, rows * d_);
    for (int64_t i = 0; bias != nullptr && i < rows; ++i) {
      auto* const to = x + i * d_;
      for (int64_t j = 0; j < d_; ++j) {
        to[j] += bias[j];
      }
    }
  }
  /// `to` and, in `narrow`, `from` were taken from this tile.
  void widen(const T* __restrict__ from, A* __restrict__ to, int64_t count) const {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      kernels_.pack_bfloat16(reinterpret_cast<const uint16_t*>(from), 0, one_row(to), 1, count);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<A>(from[i]);
      }
    }
  }
  void narrow(A* __restrict__ from, T* __restrict__ to, int64_t count) const {
    if constexpr (std::is_same_v<T, at::BFloat16>) {
      kernels_.unpack_bfloat16(fixed(one_row(from)), reinterpret_cast<uint16_t*>(to), 0, 1, count);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = static_cast<T>(from[i]);
      }
    }
  }
  /// values (rows, d) times the mask of the rows from first_row on.
  void drop(A* values, int64_t first_row, int64_t rows) {
    if (!source_.active()) {
      return;
    }
    source_.draw(kernels_, mask_, /*sequence=*/0, first_row, rows, /*first_slot=*/0, d_);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t first = 0; first < d_; first += kernels_.panel) {
        const auto* const kept = mask_.entries + first / kernels_.panel * mask_.stride + i * mask_.row;
        auto* const row = values + i * d_ + first;
        for (int64_t j = 0; j < std::min(kernels_.panel, d_ - first); ++j) {
          row[j] *= kept[j];
        }
      }
    }
  }

 private:
  /// Entries without gaps as panels with a single row.
  Panels<A> one_row(A* entries) const {
    return {entries, kernels_.panel, kernels_.panel};
  }

  const MaskSource<A>& source_;
  const Kernels<A>& kernels_;
  Scratch scratch_;
  Panels<A> mask_{};
  int64_t d_;

 public:
  A* const x;  ///< (rows, d)
};

/// A chunk's rows in even shares of whole quads, each at most a piece unless four rows are more.
inline int64_t rows_per_tile(int64_t d) {
  const auto tiles = (kRowsPerChunk * d + kPieceEntries - 1) / kPieceEntries;
  const auto quads = (kRowsPerChunk / tiles) / kQuad;
  return std::max<int64_t>(quads, 1) * kQuad;
}

/// Calls body with the first row and the number of rows of every tile of chunks first_chunk … last_chunk − 1.
template <class Body>
void for_tiles(int64_t first_chunk, int64_t last_chunk, int64_t rows, int64_t height, const Body& body) {
  for (auto chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const auto end = std::min(rows, (chunk + 1) * kRowsPerChunk);
    for (auto row = chunk * kRowsPerChunk; row < end; row += height) {
      body(row, std::min(height, end - row));
    }
  }
}

}  // namespace dba::ops::cpu
