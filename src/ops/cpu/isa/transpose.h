#pragma once

#include <utility>

#include "ops/cpu/isa/layout.h"

namespace dba::ops::cpu::DBA_ISA {

/// Exchanges the off-diagonal quarters of every square of 2·kDistance: rows `a` and `b` stand kDistance apart.
template <class T, int kDistance, size_t... kLane>
inline void exchange(Vector<T>& a, Vector<T>& b, std::index_sequence<kLane...>) {
  constexpr int kCount = sizeof...(kLane);
  const Vector<T> upper =
      __builtin_shufflevector(a, b, (kLane & kDistance ? kCount + int(kLane) - kDistance : int(kLane))...);
  const Vector<T> lower =
      __builtin_shufflevector(a, b, (kLane & kDistance ? kCount + int(kLane) : int(kLane) + kDistance)...);
  a = upper;
  b = lower;
}

template <class T, int kDistance>
inline void transpose_from(Vector<T> (&square)[kLanes<T>]) {
  if constexpr (kDistance < kLanes<T>) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      if ((i & kDistance) == 0) {
        exchange<T, kDistance>(square[i], square[i + kDistance], std::make_index_sequence<kLanes<T>>());
      }
    }
    transpose_from<T, 2 * kDistance>(square);
  }
}

/// to (columns × rows) = fromᵀ, a square of lanes at a time.
template <class T>
void pack_transposed(const T* from, int64_t row_stride, Panels<T> to, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = kLanes<T>;
  for (int64_t i = 0; i < rows; i += kSide) {
    T* const target = to.entries + i / kPanel<T> * to.stride + i % kPanel<T>;
    const int64_t height = smaller(kSide, rows - i);
    int64_t k = 0;
    if (height == kSide) {
      for (; k + kSide <= columns; k += kSide) {
        Vector<T> square[kSide];
#pragma GCC unroll 16
        for (int64_t r = 0; r < kSide; ++r) {
          square[r] = load_unaligned(from + (i + r) * row_stride + k);
        }
        transpose_from<T, 1>(square);
#pragma GCC unroll 16
        for (int64_t r = 0; r < kSide; ++r) {
          store(target + (k + r) * kPanel<T>, square[r]);
        }
      }
    }
    for (; k < columns; ++k) {
      for (int64_t r = 0; r < kSide; ++r) {
        target[k * kPanel<T> + r] = r < height ? from[(i + r) * row_stride + k] : T(0);
      }
    }
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
