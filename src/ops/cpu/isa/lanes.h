#pragma once

#include <utility>

#include "ops/cpu/isa/vector.h"

/// Combinations of the lanes of one vector.
namespace dba::ops::cpu::DBA_ISA {

template <class T, int kDistance, size_t... kLane>
inline Vector<T> partner(Vector<T> v, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(v, v, static_cast<int>(kLane ^ kDistance)...);
}

/// In every lane the combination of all lanes of its group, for groups of `size` neighbouring lanes, a power of two.
template <class T, int kDistance = 1, class Combine>
inline Vector<T> over_group(Vector<T> v, int64_t size, Combine combine) {
  if constexpr (kDistance < kLanes<T>) {
    if (kDistance < size) {
      v = combine(v, partner<T, kDistance>(v, std::make_index_sequence<kLanes<T>>()));
      return over_group<T, 2 * kDistance>(v, size, combine);
    }
  }
  return v;
}

}  // namespace dba::ops::cpu::DBA_ISA
