#pragma once

#include "ops/cpu/isa/vector.h"
#include "ops/cpu/kernels.h"

/// Between row-major rows and panels.
namespace dba::ops::cpu::DBA_ISA {

/// Calls visit(panel index, columns in the panel).
template <class T, class Visit>
inline void each_panel(int64_t columns, Visit visit) {
  for (int64_t first = 0, index = 0; first < columns; first += kPanel<T>, ++index) {
    visit(index, smaller(kPanel<T>, columns - first));
  }
}

template <class T>
inline int64_t vectors_for(int64_t columns) {
  return (columns + kLanes<T> - 1) / kLanes<T>;
}

// Sixteen bits per lane, as wide as the lanes of T.
template <class T>
struct Halves;
template <>
struct Halves<float> {
  typedef uint16_t Narrow __attribute__((vector_size(kVectorBytes / 2)));
  typedef uint32_t Wide __attribute__((vector_size(kVectorBytes)));
};

template <class T>
void pack(const T* from, int64_t row_stride, Panels<T> to, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    each_panel<T>(columns, [&](int64_t index, int64_t width) {
      T* const target = to.entries + index * to.stride + i * kPanel<T>;
      const T* const source = from + i * row_stride + index * kPanel<T>;
      int64_t j = 0;
      for (; j + kLanes<T> <= width; j += kLanes<T>) {
        store(target + j, load_unaligned(source + j));
      }
      for (; j < width; ++j) {
        target[j] = source[j];
      }
      for (; j % kLanes<T> != 0; ++j) {
        target[j] = 0;
      }
    });
  }
}

inline Vector<float> load_widened(const uint16_t* from) {
  Halves<float>::Narrow bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  const auto wide = __builtin_convertvector(bits, Halves<float>::Wide) << 16;
  return reinterpret_cast<Vector<float>>(wide);
}

/// Rounded to nearest, ties to even; any NaN becomes a quiet one.
inline void store_narrowed(Vector<float> value, uint16_t* to) {
  using Wide = Halves<float>::Wide;
  const Wide bits = reinterpret_cast<Wide>(value);
  const Wide rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const Wide quiet = Wide{} + 0x7FC0;
  const auto narrow = __builtin_convertvector(value != value ? quiet : rounded, Halves<float>::Narrow);
  __builtin_memcpy(to, &narrow, sizeof(narrow));
}

inline float widened(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof(value));
  return value;
}

inline uint16_t narrowed(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return value != value ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline void pack_bfloat16(const uint16_t* from, int64_t row_stride, Panels<float> to, int64_t rows, int64_t columns) {
  each_panel<float>(columns, [&](int64_t index, int64_t width) {
    float* const panel = to.entries + index * to.stride;
    const uint16_t* const source = from + index * kPanel<float>;
    for (int64_t i = 0; i < rows; ++i) {
      int64_t j = 0;
      for (; j + kLanes<float> <= width; j += kLanes<float>) {
        store(panel + i * kPanel<float> + j, load_widened(source + i * row_stride + j));
      }
      for (; j < width; ++j) {
        panel[i * kPanel<float> + j] = widened(source[i * row_stride + j]);
      }
      for (; j % kLanes<float> != 0; ++j) {
        panel[i * kPanel<float> + j] = 0;
      }
    }
  });
}

template <class T>
void unpack(Panels<const T> from, const T* row_divisor, T* to, int64_t row_stride, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    const T divisor = row_divisor == nullptr ? T(1) : row_divisor[i];
    const bool divide = divisor != T(1);
    each_panel<T>(columns, [&](int64_t index, int64_t width) {
      const T* const source = from.entries + index * from.stride + i * kPanel<T>;
      T* const target = to + i * row_stride + index * kPanel<T>;
      int64_t j = 0;
      for (; j + kLanes<T> <= width; j += kLanes<T>) {
        const Vector<T> value = load(source + j);
        store_unaligned<T>(target + j, divide ? value / divisor : value);
      }
      for (; j < width; ++j) {
        target[j] = source[j] / divisor;
      }
    });
  }
}

inline void unpack_bfloat16(Panels<const float> from, uint16_t* to, int64_t row_stride, int64_t rows, int64_t columns) {
  each_panel<float>(columns, [&](int64_t index, int64_t width) {
    const float* const panel = from.entries + index * from.stride;
    uint16_t* const target = to + index * kPanel<float>;
    for (int64_t i = 0; i < rows; ++i) {
      int64_t j = 0;
      for (; j + kLanes<float> <= width; j += kLanes<float>) {
        store_narrowed(load(panel + i * kPanel<float> + j), target + i * row_stride + j);
      }
      for (; j < width; ++j) {
        target[i * row_stride + j] = narrowed(panel[i * kPanel<float> + j]);
      }
    }
  });
}

}  // namespace dba::ops::cpu::DBA_ISA
