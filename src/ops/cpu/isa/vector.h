#pragma once

#include <cstddef>
#include <cstdint>

/// Vectors of the instruction set that a translation unit is compiled for. Every file in this folder is compiled once
/// for each set, into a namespace of its own (DBA_ISA), so that the linker never mixes the sets; for the same reason
/// nothing here calls an inline function of another library. Layouts are those of ops/cpu/kernels.h.
namespace dba::ops::cpu::DBA_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kBlockRows = 6;  // 24 of the 32 registers accumulate
constexpr int kPanelVectors = 4;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
constexpr int kBlockRows = 6;  // 12 of 16
constexpr int kPanelVectors = 2;
#else
constexpr int kVectorBytes = 16;
constexpr int kBlockRows = 6;
constexpr int kPanelVectors = 2;
#endif

template <class T>
struct Simd;

template <>
struct Simd<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes), may_alias));
  typedef int32_t Integer __attribute__((vector_size(kVectorBytes), may_alias));
};

template <>
struct Simd<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes), may_alias));
  typedef int64_t Integer __attribute__((vector_size(kVectorBytes), may_alias));
};

template <class T>
using Vector = typename Simd<T>::Vector;
template <class T>
using Integer = typename Simd<T>::Integer;

template <class T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
/// Columns of a panel.
template <class T>
constexpr int kPanel = kPanelVectors* kLanes<T>;

template <class T>
inline Vector<T> load(const T* from) {
  return *reinterpret_cast<const Vector<T>*>(from);
}

template <class T>
inline void store(T* to, Vector<T> value) {
  *reinterpret_cast<Vector<T>*>(to) = value;
}

template <class T>
inline Vector<T> load_unaligned(const T* from) {
  Vector<T> value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
inline void store_unaligned(T* to, Vector<T> value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

template <class T>
inline Vector<T> spread(T value) {
  return Vector<T>{} + value;
}

/// NaN where b is NaN.
template <class T>
inline Vector<T> larger(Vector<T> a, Vector<T> b) {
  return a > b ? a : b;
}

inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

}  // namespace dba::ops::cpu::DBA_ISA
