#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "ops/cpu/kernels.h"

namespace dba::ops::cpu {

/// An (N, width) tensor of any element type and strides, read and written a tile at a time in the accumulation type.
template <class T>
class TokenMatrix {
 public:
  explicit TokenMatrix(const at::Tensor& tensor);
  int64_t width() const {
    return width_;
  }
  void load(const Kernels<T>& kernels, int64_t first_row, int64_t rows, Panels<T> to) const;
  /// A tile as left factor of products: the rows themselves where they are of the accumulation type, else loaded.
  Panels<const T> left_factor(const Kernels<T>& kernels, int64_t first_row, int64_t rows, Panels<T> scratch) const;
  /// A tile as either factor: the rows themselves where their width allows it too, else loaded.
  Panels<const T> factor(const Kernels<T>& kernels, int64_t first_row, int64_t rows, Panels<T> scratch) const;
  /// Where a product may put a tile: the rows themselves where it can, else scratch, which `store` then has to bring
  /// in.
  Panels<T> target(const Kernels<T>& kernels, int64_t first_row, Panels<T> scratch) const;
  /// Rows that `target` gave are in place already.
  void store(const Kernels<T>& kernels, int64_t first_row, int64_t rows, Panels<const T> from) const;
  /// The memory of rows that are wanted soon, as far as there are any.
  Ahead ahead(int64_t first_row, int64_t rows) const;
  /// Zeros for the rows that lie in no sequence.
  void clear_rows_of_nobody(const std::vector<int64_t>& begin, const std::vector<int64_t>& end) const;

 private:
  bool of_accumulation_type() const {
    return type_ == c10::CppTypeToScalarType<T>::value && column_stride_ == 1;
  }

  void* data_;
  at::ScalarType type_;
  int64_t rows_, width_, row_stride_, column_stride_;
};

/// Why the passes cannot read tokens of this type, or nothing.
std::string type_obstacle(at::ScalarType type);

}  // namespace dba::ops::cpu
