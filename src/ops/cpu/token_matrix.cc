#include "ops/cpu/token_matrix.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <type_traits>

namespace dba::ops::cpu {

template <class T>
TokenMatrix<T>::TokenMatrix(const at::Tensor& tensor)
    : data_(const_cast<void*>(tensor.const_data_ptr())),
      type_(tensor.scalar_type()),
      rows_(tensor.size(0)),
      width_(tensor.size(1)),
      row_stride_(tensor.stride(0)),
      column_stride_(tensor.stride(1)) {}

template <class T>
void TokenMatrix<T>::load(const Kernels<T>& kernels, int64_t first_row, int64_t rows, Panels<T> to) const {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type_, "dba::TokenMatrix::load", [&] {
    const auto* const from = static_cast<const scalar_t*>(data_) + first_row * row_stride_;
    if constexpr (std::is_same_v<scalar_t, T>) {
      if (column_stride_ == 1) {
        return kernels.pack(from, row_stride_, to, rows, width_);
      }
    }
    if constexpr (std::is_same_v<scalar_t, at::BFloat16> && std::is_same_v<T, float>) {
      if (column_stride_ == 1) {
        return kernels.pack_bfloat16(reinterpret_cast<const uint16_t*>(from), row_stride_, to, rows, width_);
      }
    }
    for (int64_t j = 0; j < width_; ++j) {
      T* const column = to.entries + j / kernels.panel * to.stride + j % kernels.panel;
      for (int64_t i = 0; i < rows; ++i) {
        column[i * kernels.panel] = static_cast<T>(from[i * row_stride_ + j * column_stride_]);
      }
    }
  });
}

template <class T>
Panels<const T> TokenMatrix<T>::left_factor(const Kernels<T>& kernels, int64_t first_row, int64_t rows,
                                            Panels<T> scratch) const {
  if (of_accumulation_type()) {
    return {static_cast<const T*>(data_) + first_row * row_stride_, kernels.panel, row_stride_};
  }
  load(kernels, first_row, rows, scratch);
  return {scratch.entries, scratch.stride, scratch.row};
}

template <class T>
Panels<const T> TokenMatrix<T>::factor(const Kernels<T>& kernels, int64_t first_row, int64_t rows,
                                       Panels<T> scratch) const {
  if (width_ % kernels.lanes == 0) {
    return left_factor(kernels, first_row, rows, scratch);
  }
  load(kernels, first_row, rows, scratch);
  return {scratch.entries, scratch.stride, scratch.row};
}

template <class T>
Panels<T> TokenMatrix<T>::target(const Kernels<T>& kernels, int64_t first_row, Panels<T> scratch) const {
  if (of_accumulation_type() && width_ % kernels.lanes == 0) {
    return {static_cast<T*>(data_) + first_row * row_stride_, kernels.panel, row_stride_};
  }
  return scratch;
}

template <class T>
void TokenMatrix<T>::store(const Kernels<T>& kernels, int64_t first_row, int64_t rows, Panels<const T> from) const {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type_, "dba::TokenMatrix::store", [&] {
    auto* const to = static_cast<scalar_t*>(data_) + first_row * row_stride_;
    if (static_cast<const void*>(to) == static_cast<const void*>(from.entries)) {
      return;
    }
    if constexpr (std::is_same_v<scalar_t, T>) {
      kernels.unpack(from, nullptr, to, row_stride_, rows, width_);
    } else if constexpr (std::is_same_v<scalar_t, at::BFloat16> && std::is_same_v<T, float>) {
      kernels.unpack_bfloat16(from, reinterpret_cast<uint16_t*>(to), row_stride_, rows, width_);
    } else {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < width_; ++j) {
          to[i * row_stride_ + j] =
              static_cast<scalar_t>(from.entries[j / kernels.panel * from.stride + i * from.row + j % kernels.panel]);
        }
      }
    }
  });
}

template <class T>
Ahead TokenMatrix<T>::ahead(int64_t first_row, int64_t rows) const {
  const auto bytes = width_ * static_cast<int64_t>(c10::elementSize(type_));
  if (column_stride_ != 1 || row_stride_ != width_ || first_row >= rows_) {
    return {};
  }
  return {static_cast<const char*>(data_) + first_row * bytes, std::min(rows, rows_ - first_row) * bytes};
}

template <class T>
void TokenMatrix<T>::clear_rows_of_nobody(const std::vector<int64_t>& begin, const std::vector<int64_t>& end) const {
  const auto bytes = row_stride_ * static_cast<int64_t>(c10::elementSize(type_));
  auto* const first = static_cast<char*>(data_);
  const auto clear = [&](int64_t from, int64_t to) { std::fill(first + from * bytes, first + to * bytes, 0); };
  int64_t next = 0;
  for (size_t b = 0; b < begin.size(); ++b) {
    if (begin[b] > next) {
      clear(next, begin[b]);
    }
    next = std::max(next, end[b]);
  }
  clear(next, rows_);
}

std::string type_obstacle(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
      return {};
    default:
      return std::string("x must be float32, float64, bfloat16 or float16, got ") + c10::toString(type);
  }
}

template class TokenMatrix<float>;
template class TokenMatrix<double>;

}  // namespace dba::ops::cpu
