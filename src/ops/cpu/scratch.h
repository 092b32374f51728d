#pragma once

#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <vector>

#include "ops/cpu/kernels.h"

namespace dba::ops::cpu {

/// Memory for one task, aligned for every vector. Filled with NaN where PyTorch is asked to fill what is uninitialised
/// (torch.use_deterministic_algorithms).
class Scratch {
 public:
  template <class T>
  T* take(int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(T);
    blocks_.push_back(c10::GetCPUAllocator()->allocate(bytes));
    void* const block = blocks_.back().get();
    if (bytes > 0 && at::globalContext().deterministicAlgorithms() &&
        at::globalContext().deterministicFillUninitializedMemory()) {
      std::memset(block, 0xFF, bytes);
    }
    return static_cast<T*>(block);
  }
  /// One entry per column, zero.
  template <class T>
  T* zeros(int64_t count) {
    T* const block = take<T>(count);
    std::memset(static_cast<void*>(block), 0, static_cast<size_t>(count) * sizeof(T));
    return block;
  }
  /// A rows × columns matrix.
  template <class T>
  Panels<T> panels(const Kernels<T>& kernels, int64_t rows, int64_t columns) {
    const auto stride = rows * kernels.panel;
    return {take<T>(stride * ((columns + kernels.panel - 1) / kernels.panel)), stride, kernels.panel};
  }

 private:
  std::vector<at::DataPtr> blocks_;
};

template <class T>
Panels<const T> fixed(Panels<T> panels) {
  return {panels.entries, panels.stride, panels.row};
}

/// The same matrix from row `row` on.
template <class T>
Panels<T> from_row(Panels<T> panels, int64_t row) {
  return {panels.entries + row * panels.row, panels.stride, panels.row};
}

/// Row-major rows as right factor of products: the rows themselves where their width allows it, else packed.
template <class T>
Panels<const T> right_factor(const Kernels<T>& kernels, const T* rows, int64_t row_stride, int64_t count, int64_t width,
                             Panels<T> scratch) {
  if (width % kernels.lanes == 0) {
    return {rows, kernels.panel, row_stride};
  }
  kernels.pack(rows, row_stride, scratch, count, width);
  return fixed(scratch);
}

/// Scratch for it.
template <class T>
Panels<T> right_factor_scratch(const Kernels<T>& kernels, int64_t count, int64_t width, Scratch& scratch) {
  return scratch.panels(kernels, width % kernels.lanes == 0 ? 0 : count, width);
}

/// The same matrix from column `column` on, the first of a panel.
template <class T>
Panels<T> from_column(const Kernels<T>& kernels, Panels<T> panels, int64_t column) {
  return {panels.entries + column / kernels.panel * panels.stride, panels.stride, panels.row};
}

template <class T>
constexpr Panels<const T> kNothing{nullptr, 0, 0};

template <class T>
int64_t padded_columns(const Kernels<T>& kernels, int64_t columns) {
  return (columns + kernels.panel - 1) / kernels.panel * kernels.panel;
}

}  // namespace dba::ops::cpu
