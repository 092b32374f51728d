#pragma once

#include "ops/cpu/isa/activate.h"
#include "ops/cpu/isa/compress.h"
#include "ops/cpu/isa/dropout.h"
#include "ops/cpu/isa/layout.h"
#include "ops/cpu/isa/product.h"
#include "ops/cpu/isa/restore.h"
#include "ops/cpu/isa/sums.h"
#include "ops/cpu/isa/transpose.h"

namespace dba::ops::cpu::DBA_ISA {

template <class T>
void multiply_ahead(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns, int64_t inner,
                    bool add, Ahead ahead) {
  // Long sums are made of shorter ones: rounding errors grow less, and the right factor's block stays in cache.
  constexpr int64_t kInnerBlock = 256;
  static_assert(kInnerBlock % kPanel<T> == 0);
  for (int64_t first = 0; first < inner; first += kInnerBlock) {
    product<T, false>({a.entries + first / kPanel<T> * a.stride, a.stride, a.row},
                      {b.entries + first * b.row, b.stride, b.row}, out, rows, columns,
                      smaller(kInnerBlock, inner - first), add || first > 0, first == 0 ? ahead : Ahead{});
  }
}

template <class T>
void multiply(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns, int64_t inner,
              bool add) {
  multiply_ahead<T>(a, b, out, rows, columns, inner, add, {});
}

template <class T>
void multiply_transposed_ahead(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns,
                               int64_t inner, bool add, Ahead ahead) {
  product<T, true>(a, b, out, rows, columns, inner, add, ahead);
}

template <class T>
void multiply_transposed(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns,
                         int64_t inner, bool add) {
  multiply_transposed_ahead<T>(a, b, out, rows, columns, inner, add, {});
}

template <class T>
const Kernels<T>* table(const char* name) {
  static_assert(kPanel<T> <= kWidestPanel);
  static const Kernels<T> kernels = [name] {
    Kernels<T> k{};
    k.name = name;
    k.lanes = kLanes<T>;
    k.panel = kPanel<T>;
    k.multiply = multiply<T>;
    k.multiply_ahead = multiply_ahead<T>;
    k.multiply_transposed = multiply_transposed<T>;
    k.multiply_transposed_ahead = multiply_transposed_ahead<T>;
    k.pack = pack<T>;
    k.pack_transposed = pack_transposed<T>;
    k.unpack = unpack<T>;
    if constexpr (sizeof(T) == sizeof(float)) {
      k.pack_bfloat16 = pack_bfloat16;
      k.unpack_bfloat16 = unpack_bfloat16;
      k.activate_bfloat16 = activate_bfloat16;
      k.differentiate_bfloat16 = differentiate_bfloat16;
      k.rounded_gelu = rounded_gelu_entries;
      k.rounded_gelu_gradient = rounded_gelu_gradient;
    }
    k.scale_rows = scale_rows<T>;
    k.divide_rows = divide_rows<T>;
    k.add_rows = add_rows<T>;
    k.row_products = row_products<T>;
    k.dropout_mask = dropout_mask<T>;
    k.compress_weights = compress_weights<T>;
    k.compress_gradient = compress_gradient<T>;
    k.restore_weights = restore_weights<T>;
    k.restore_gradient = restore_gradient<T>;
    return k;
  }();
  return &kernels;
}

}  // namespace dba::ops::cpu::DBA_ISA
