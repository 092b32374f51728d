#pragma once

#include "ops/cpu/isa/vector.h"
#include "ops/cpu/kernels.h"

/// Products of panelled matrices (ops/cpu/kernels.h): a block of kBlockRows × one panel lives in registers while the
/// inner dimension runs through.
namespace dba::ops::cpu::DBA_ISA {

/// Entry (i, k) of the left factor lies at a[i · row + k] or, where kColumns, at a[k · row + i].
template <class T, int kRows, int kVectors, bool kColumns>
inline void accumulate(Vector<T> (&sum)[kRows][kVectors], const T* a, int64_t a_row, const T* b, int64_t b_row,
                       int64_t inner) {
  const int64_t step = kColumns ? a_row : 1;
  const int64_t next = kColumns ? 1 : a_row;
#pragma GCC unroll 2
  for (int64_t k = 0; k < inner; ++k) {
    Vector<T> right[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      right[v] = load_unaligned(b + v * kLanes<T>);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const T left = a[i * next];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[i][v] += left * right[v];
      }
    }
    a += step;
    b += b_row;
  }
}

/// One block of the product. Left rows cross the panels of the left factor, left columns stay inside one. (Plain
/// arguments, not Panels: a struct that was written field by field and is read as a whole waits for its stores.)
template <class T, int kRows, int kVectors, bool kColumns>
void block(const T* a, int64_t a_stride, int64_t a_row, const T* b, int64_t b_row, T* out, int64_t out_row,
           int64_t inner, bool add) {
  Vector<T> sum[kRows][kVectors] = {};
  if (kColumns || a_stride == kPanel<T>) {  // the inner dimension runs through without a break
    accumulate<T, kRows, kVectors, kColumns>(sum, a, a_row, b, b_row, inner);
  } else {
    for (int64_t k = 0; k < inner; k += kPanel<T>) {
      accumulate<T, kRows, kVectors, false>(sum, a + k / kPanel<T> * a_stride, a_row, b + k * b_row, b_row,
                                            smaller(kPanel<T>, inner - k));
    }
  }
  // What is there is added last: rounding errors of sums of sums grow less than those of one long sum.
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      T* const at = out + i * out_row + v * kLanes<T>;
      store_unaligned<T>(at, add ? load_unaligned(at) + sum[i][v] : sum[i][v]);
    }
  }
}

template <class T, int kVectors, bool kColumns>
void block_of_rows(int64_t rows, const T* a, int64_t a_stride, int64_t a_row, const T* b, int64_t b_row, T* out,
                   int64_t out_row, int64_t inner, bool add) {
  static_assert(kBlockRows == 6);
  switch (rows) {
    case 1:
      return block<T, 1, kVectors, kColumns>(a, a_stride, a_row, b, b_row, out, out_row, inner, add);
    case 2:
      return block<T, 2, kVectors, kColumns>(a, a_stride, a_row, b, b_row, out, out_row, inner, add);
    case 3:
      return block<T, 3, kVectors, kColumns>(a, a_stride, a_row, b, b_row, out, out_row, inner, add);
    case 4:
      return block<T, 4, kVectors, kColumns>(a, a_stride, a_row, b, b_row, out, out_row, inner, add);
    case 5:
      return block<T, 5, kVectors, kColumns>(a, a_stride, a_row, b, b_row, out, out_row, inner, add);
    default:
      return block<T, 6, kVectors, kColumns>(a, a_stride, a_row, b, b_row, out, out_row, inner, add);
  }
}

/// Memory that is fetched in equal shares, one before each block.
class Fetching {
 public:
  Fetching(Ahead ahead, int64_t blocks)
      : next_(static_cast<const char*>(ahead.at)),
        end_(next_ + ahead.bytes),
        share_((ahead.bytes / (blocks > 0 ? blocks : 1) / kLine + 1) * kLine) {}
  void step() {
    const char* const stop = end_ - next_ < share_ ? end_ : next_ + share_;
    for (; next_ < stop; next_ += kLine) {
      __builtin_prefetch(next_, 0, 2);
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const char *next_, *end_;
  int64_t share_;
};

/// All rows of one panel of the product, kVectors vectors wide.
template <class T, int kVectors, bool kColumns>
void panel_product(Panels<const T> a, const T* b, int64_t b_row, T* out, int64_t out_row, int64_t rows, int64_t inner,
                   bool add, Fetching& fetching) {
  for (int64_t i = 0; i < rows;) {
    int64_t count = smaller(kBlockRows, rows - i);
    const T* left = a.entries;
    if constexpr (kColumns) {
      const int64_t in_panel = i % kPanel<T>;
      count = smaller(count, kPanel<T> - in_panel);
      left += i / kPanel<T> * a.stride + in_panel;
    } else {
      left += i * a.row;
    }
    fetching.step();
    block_of_rows<T, kVectors, kColumns>(count, left, a.stride, a.row, b, b_row, out + i * out_row, out_row, inner,
                                         add);
    i += count;
  }
}

template <class T, bool kColumns>
void product(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns, int64_t inner,
             bool add, Ahead ahead) {
  Fetching fetching(ahead, (rows + kBlockRows - 1) / kBlockRows * ((columns + kPanel<T> - 1) / kPanel<T>));
  for (int64_t first = 0; first < columns; first += kPanel<T>) {
    const int64_t vectors = (smaller(kPanel<T>, columns - first) + kLanes<T> - 1) / kLanes<T>;
    static_assert(kPanelVectors <= 4);
    switch (vectors) {
      case 1:
        panel_product<T, 1, kColumns>(a, b.entries, b.row, out.entries, out.row, rows, inner, add, fetching);
        break;
      case 2:
        panel_product<T, 2, kColumns>(a, b.entries, b.row, out.entries, out.row, rows, inner, add, fetching);
        break;
      case 3:
        panel_product<T, 3, kColumns>(a, b.entries, b.row, out.entries, out.row, rows, inner, add, fetching);
        break;
      default:
        panel_product<T, 4, kColumns>(a, b.entries, b.row, out.entries, out.row, rows, inner, add, fetching);
    }
    b.entries += b.stride;
    out.entries += out.stride;
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
