#pragma once

#include "ops/cpu/isa/layout.h"

namespace dba::ops::cpu::DBA_ISA {

template <class T>
void scale_rows(Panels<T> matrix, const T* factor, int64_t rows, int64_t columns) {
  each_panel<T>(columns, [&](int64_t index, int64_t width) {
    T* const panel = matrix.entries + index * matrix.stride;
    for (int64_t i = 0; i < rows; ++i) {
      if (factor[i] == T(1)) {
        continue;
      }
      for (int64_t v = 0; v < vectors_for<T>(width); ++v) {
        T* const at = panel + i * kPanel<T> + v * kLanes<T>;
        store(at, load(at) * factor[i]);
      }
    }
  });
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
void row_products(const T* a, const T* b, T* products, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    Vector<T> sum{};
    int64_t j = 0;
    for (; j + kLanes<T> <= columns; j += kLanes<T>) {
      sum += load_unaligned(a + i * columns + j) * load_unaligned(b + i * columns + j);
    }
    T total = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) {
      total += sum[lane];
    }
    for (; j < columns; ++j) {
      total += a[i * columns + j] * b[i * columns + j];
    }
    products[i] = total;
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
