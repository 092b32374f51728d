#pragma once

#include <cstdint>

#include "ops/cuda/general_arithmetic.cuh"

/// Tiles in shared memory: rows of elements, 16 bytes of padding after each, so that eight rows in a column of
/// 16-byte pieces fall into different banks (row lengths are multiples of 128 bytes).
namespace dba::ops::cuda::general {

constexpr int kThreads = 128;
constexpr int kTileRows = 64;
/// Blocks on a multiprocessor for which registers are rationed: two blocks may have all a thread can address.
constexpr int kResidentBlocks = 2;

/// The threads of a block whose tiles are kWidth entries wide. Accumulators of 64 rows are at most 128 numbers a
/// thread: four warps serve 512 bytes a row, wider tiles want eight. Blocks of eight are alone on their multiprocessor.
template <class E, int kWidth>
struct BlockWarps {
  static constexpr int kWarps = kWidth * static_cast<int>(sizeof(E)) > 512 ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kResident = kResidentBlocks * general::kThreads / kThreads;
  static constexpr int kSides = kWarps / 4;
};

/// Four warps have 16 rows of a tile's scores each; eight share the columns too, a side each.
__device__ inline int first_score_row() {
  return 16 * (warp_index() % 4);
}
__device__ inline int score_side() {
  return warp_index() / 4;
}

template <class E>
constexpr int kPieceEntries = 16 / static_cast<int>(sizeof(E));

/// Elements from one row of a tile to the next.
template <class E>
__host__ __device__ constexpr int row_stride(int width) {
  return width + kPieceEntries<E>;
}

/// Products sum over multiples of 16; tiles are zero up to there.
__host__ __device__ constexpr int padded(int width) {
  return (width + 15) / 16 * 16;
}

__device__ inline void copy_async(void* to, const void* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// 16 bytes of a row: the entries of `from` before `count`, then zeros; by single loads.
template <class Math>
__device__ inline void copy_entries(typename Math::Element* to, const typename Math::Element* from, int count) {
  using E = typename Math::Element;
  alignas(16) E entries[kPieceEntries<E>];
#pragma unroll
  for (int i = 0; i < kPieceEntries<E>; ++i) {
    entries[i] = i < count ? from[i] : Math::round(0.0f);
  }
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(entries);
}

/// Rows at regular distances for a tile: the tile's row r is there for first ≤ r < after, at row + r · stride, and from
/// r = split on at second + r · stride.
template <class T>
struct StridedRows {
  const T* row = nullptr;
  int64_t stride = 0;
  int first = 0, after = 0;
  int split = kTileRows;
  const T* second = nullptr;

  /// Goes through the rows begin, begin + step, …
  template <int kStep>
  struct Cursor {
    StridedRows rows;
    int r;
    int64_t offset;

    __device__ Cursor(const StridedRows& rows, int begin) : rows(rows), r(begin), offset(begin * rows.stride) {}
    __device__ const T* next() {
      const T* from = r >= rows.first && r < rows.after ? (r < rows.split ? rows.row : rows.second) + offset : nullptr;
      r += kStep;
      offset += kStep * rows.stride;
      return from;
    }
  };
};

/// Rows wherever row_of(r) says: a pointer, or null.
template <class RowOf>
struct ScatteredRows {
  const RowOf& row_of;

  template <int kStep>
  struct Cursor {
    const RowOf& row_of;
    int r;

    __device__ Cursor(const ScatteredRows& rows, int begin) : row_of(rows.row_of), r(begin) {}
    __device__ auto next() {
      const auto* from = row_of(r);
      r += kStep;
      return from;
    }
  };
};
template <class RowOf>
ScatteredRows(const RowOf&) -> ScatteredRows<RowOf>;

/// tile (kRows, kWidth) ← `width` entries of each row that is there; the rest up to padded(width) becomes zero, as do
/// absent rows. `aligned`: every row begins at a multiple of 16 bytes; then whole pieces of elements arrive by
/// cp.async, and the caller commits and awaits them. All of the block's kThreads call this.
template <class Math, int kRows, int kWidth, int kThreads, class Rows>
__device__ inline void load_tile(typename Math::Element* tile, const Rows& rows, int width, bool aligned) {
  using E = typename Math::Element;
  constexpr int kEntries = kPieceEntries<E>;
  constexpr int kPieces = kWidth / kEntries;
  constexpr int kRowStep = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kRows % kRowStep == 0);
  // A thread keeps to its column of 16-byte pieces.
  const int row0 = static_cast<int>(threadIdx.x) / kPieces;
  const int column = static_cast<int>(threadIdx.x) % kPieces * kEntries;
  if (column >= padded(width)) {
    return;
  }
  const int present = min(width - column, kEntries);
  tile += row0 * row_stride<E>(kWidth) + column;
  typename Rows::template Cursor<kRowStep> cursor(rows, row0);
  // Calls copy(to, from) for the next row if it has entries here, else clears it.
  const auto piece = [&](int i, const auto& copy) {
    E* to = tile + i * kRowStep * row_stride<E>(kWidth);
    const E* from = cursor.next();
    if (from != nullptr && present > 0) {
      copy(to, from + column);
    } else {
      *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
  };
  if (aligned && present == kEntries) {
#pragma unroll 4
    for (int i = 0; i < kRows / kRowStep; ++i) {
      piece(i, [](E* to, const E* from) { copy_async(to, from); });
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kRows / kRowStep; ++i) {
      piece(i, [present](E* to, const E* from) { copy_entries<Math>(to, from, present); });
    }
  }
}

/// Two entries side by side, at an even column.
__device__ inline void store_pair(__half* to, float a, float b) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ inline void store_pair(__nv_bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ inline void store_pair(float* to, float a, float b) {
  *reinterpret_cast<float2*>(to) = make_float2(a, b);
}

/// The block's accumulators, kTileRows × kWidth: every warp holds all rows and of the groups of 16 columns every fourth
/// (with eight warps every eighth), so that the warps share the work evenly at every width.
template <class Math, int kWidth>
struct BlockAccumulators {
  using E = typename Math::Element;
  static constexpr int kGroupStep = 16 * BlockWarps<E, kWidth>::kWarps;
  static constexpr int kGroups = kWidth / kGroupStep;
  float values[4][2 * kGroups][4];

  __device__ static int first_column() {
    return 16 * warp_index();
  }
  /// += A B, A's tile (kTileRows, depth) or, with kA = outer, (depth, kTileRows); B's (depth, kWidth). Columns from
  /// `width` on hold nothing of use.
  template <Contiguous kA>
  __device__ void add_product(const E* a, int a_stride, const E* b, int width, int depth) {
    const int groups = (width + kGroupStep - 1) / kGroupStep;
    const auto product = [&](int count) {
      Math::template product<4, kGroups, kA, Contiguous::outer>(values, a, a_stride, b + first_column(),
                                                                row_stride<E>(kWidth), kGroupStep, count, depth);
    };
    if (groups == kGroups) {
      product(kGroups);  // without a branch at every group
    } else {
      product(groups);
    }
  }

  /// values[row] *= factor[row].
  __device__ void scale_rows(const float* factor) {
    const int g = lane_index() >> 2;
#pragma unroll
    for (int mi = 0; mi < 4; ++mi) {
      const float of_half[2] = {factor[16 * mi + g], factor[16 * mi + g + 8]};
#pragma unroll
      for (int n = 0; n < 2 * kGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[mi][n][i] *= of_half[i / 2];
        }
      }
    }
  }

  /// Calls visit(row, column, first, second) for every pair of neighbouring columns before `width`.
  template <class Visit>
  __device__ void for_each_pair(int width, const Visit& visit) const {
    const int g = lane_index() >> 2, t = lane_index() & 3;
#pragma unroll
    for (int mi = 0; mi < 4; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int n = 0; n < 2 * kGroups; ++n) {
          const int column = first_column() + (n / 2) * kGroupStep + 8 * (n % 2) + 2 * t;
          if (column < width) {
            visit(16 * mi + g + 8 * half, column, values[mi][n][2 * half], values[mi][n][2 * half + 1]);
          }
        }
      }
    }
  }

  /// Row r goes to row_of(r), a pointer or null, `width` floats. `even`: pairs may be stored as 8 bytes.
  template <class RowOf>
  __device__ void write_rows(const RowOf& row_of, int width, bool even) const {
    for_each_pair(width, [&](int row, int column, float first, float second) {
      float* to = row_of(row);
      if (to == nullptr) {
        return;
      }
      if (even) {
        *reinterpret_cast<float2*>(to + column) = make_float2(first, second);
      } else {
        to[column] = first;
        if (column + 1 < width) {
          to[column + 1] = second;
        }
      }
    });
  }
};

/// Rows `written` … after − 1 of `to`, `stride` elements apart, `width` entries each, in the order that makes whole
/// lines: from `first` on those of a tile (·, kWidth), before it zeros. `aligned`: every row of `to` begins at a
/// multiple of 16 bytes.
template <class E, int kWidth>
__device__ inline void store_tile(E* to, int64_t stride, const E* tile, int written, int first, int after, int width,
                                  bool aligned) {
  constexpr int kEntries = kPieceEntries<E>;
  constexpr int kPieces = kWidth / kEntries;
  for (int i = written * kPieces + static_cast<int>(threadIdx.x); i < after * kPieces;
       i += BlockWarps<E, kWidth>::kThreads) {
    const int row = i / kPieces, column = i % kPieces * kEntries;
    const E* from = tile + row * row_stride<E>(kWidth) + column;
    E* entry = to + row * stride + column;
    if (aligned && column + kEntries <= width) {
      *reinterpret_cast<uint4*>(entry) = row < first ? make_uint4(0, 0, 0, 0) : *reinterpret_cast<const uint4*>(from);
    } else {
      for (int j = 0; j < kEntries && column + j < width; ++j) {
        entry[j] = row < first ? E{} : from[j];
      }
    }
  }
}

}  // namespace dba::ops::cuda::general
