#pragma once

#include "ops/cpu/isa/lanes.h"
#include "ops/cpu/isa/layout.h"

namespace dba::ops::cpu::DBA_ISA {

/// Calls change(vector, number) for the vectors of every row whose number is not 1.
template <class T, class Change>
inline void change_rows(Panels<T> matrix, const T* number, int64_t rows, int64_t columns, Change change) {
  for (int64_t i = 0; i < rows; ++i) {
    if (number[i] == T(1)) {
      continue;
    }
    each_panel<T>(columns, [&](int64_t index, int64_t width) {
      T* const row = matrix.entries + index * matrix.stride + i * matrix.row;
      for (int64_t v = 0; v < vectors_for<T>(width); ++v) {
        T* const at = row + v * kLanes<T>;
        store_unaligned<T>(at, change(load_unaligned(at), number[i]));
      }
    });
  }
}

template <class T>
void scale_rows(Panels<T> matrix, const T* factor, int64_t rows, int64_t columns) {
  change_rows<T>(matrix, factor, rows, columns, [](Vector<T> value, T number) { return value * number; });
}

template <class T>
void divide_rows(Panels<T> matrix, const T* divisor, int64_t rows, int64_t columns) {
  change_rows<T>(matrix, divisor, rows, columns, [](Vector<T> value, T number) { return value / number; });
}

template <class T>
void add_rows(Panels<const T> matrix, T* sums, int64_t rows, int64_t columns) {
  each_panel<T>(columns, [&](int64_t index, int64_t width) {
    const T* const panel = matrix.entries + index * matrix.stride;
    for (int64_t v = 0; v < vectors_for<T>(width); ++v) {
      Vector<T> sum{};
      for (int64_t i = 0; i < rows; ++i) {
        sum += load_unaligned(panel + i * matrix.row + v * kLanes<T>);
      }
      T* const at = sums + index * kPanel<T> + v * kLanes<T>;
      store(at, load(at) + sum);
    }
  });
}

template <class T>
void row_products(Panels<const T> a, Panels<const T> b, T* products, int64_t rows, int64_t columns) {
  const auto add = [](Vector<T> x, Vector<T> y) { return x + y; };
  for (int64_t i = 0; i < rows; ++i) {
    Vector<T> sum{};
    T rest = 0;
    each_panel<T>(columns, [&](int64_t index, int64_t width) {
      const T* const left = a.entries + index * a.stride + i * a.row;
      const T* const right = b.entries + index * b.stride + i * b.row;
      int64_t j = 0;
      for (; j + kLanes<T> <= width; j += kLanes<T>) {
        sum += load_unaligned(left + j) * load_unaligned(right + j);
      }
      for (; j < width; ++j) {
        rest += left[j] * right[j];
      }
    });
    products[i] = over_group<T>(sum, kLanes<T>, add)[0] + rest;
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
