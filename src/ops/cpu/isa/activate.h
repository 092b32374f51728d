#pragma once

#include "ops/cpu/isa/exponential.h"
#include "ops/cpu/isa/layout.h"
#include "ops/normal_tail.h"

/// Activations whose results are rounded to sixteen bits; the tail of GELU is that of ops/normal_tail.h.
namespace dba::ops::cpu::DBA_ISA {

/// |x|, or where the tail ends; NaN stays.
inline Vector<float> tail_place(Vector<float> x) {
  const Vector<float> a = x < Vector<float>{} ? -x : x;
  return a > spread(kNormalTailEnd) ? spread(kNormalTailEnd) : a;
}

/// 2 to the power y, by a series whose error is 3e-6 at most; 0 below what float can hold.
inline Vector<float> rounded_power_of_two(Vector<float> y) {
  constexpr int kDegree = 5;
  constexpr float kSmallest = -126.0f, kLog2 = 0.69314718f;
  using Constants = Exponential<float>;
  const Vector<float> shifted = y + Constants::kRound;
  const Vector<float> rest = (y - (shifted - Constants::kRound)) * kLog2;
  Vector<float> series = spread(inverse_factorial<float>(kDegree));
#pragma GCC unroll 8
  for (int i = kDegree - 1; i >= 0; --i) {
    series = series * rest + inverse_factorial<float>(i);
  }
  const Integer<float> exponent = (reinterpret_cast<Integer<float>>(shifted) - Constants::kRoundBits + Constants::kBias)
                                  << Constants::kMantissa;
  return y < spread(kSmallest) ? Vector<float>{} : series * reinterpret_cast<Vector<float>>(exponent);
}

/// Φ(−a)
inline Vector<float> normal_tail(Vector<float> a) {
  return rounded_power_of_two(normal_tail_log2(a));
}

/// gelu(x) = max(x, 0) − |x| Φ(−|x|)
inline Vector<float> rounded_gelu(Vector<float> x) {
  const Vector<float> a = tail_place(x);
  return (x < Vector<float>{} ? Vector<float>{} : x) - a * normal_tail(a);
}

/// s = Φ(−a) − a φ(a) at −a, and 1 − s at a.
inline Vector<float> rounded_gelu_slope(Vector<float> x) {
  // φ(a) = 2^(−a² log₂(e) / 2 − log₂ √(2π))
  constexpr float kHalfLog2E = 0.72134752f;
  constexpr float kLog2Norm = 1.32574806f;
  const Vector<float> a = tail_place(x);
  const Vector<float> s = normal_tail(a) - a * rounded_power_of_two(a * a * -kHalfLog2E - kLog2Norm);
  return x < Vector<float>{} ? s : 1.0f - s;
}

inline void rounded_gelu_entries(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    store<float>(x + i, rounded_gelu(load(x + i)));
  }
}

inline void rounded_gelu_gradient(const float* x, float* gradient, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    store<float>(gradient + i, load(gradient + i) * rounded_gelu_slope(load(x + i)));
  }
}

/// Calls visit(column, columns) for every vector of a row, of which the last may be shorter.
template <class Visit>
inline void each_row_vector(int64_t columns, Visit visit) {
  for (int64_t j = 0; j < columns; j += kLanes<float>) {
    visit(j, smaller(kLanes<float>, columns - j));
  }
}

/// `count` entries, zeros behind them.
inline Vector<float> load_widened(const uint16_t* from, int64_t count) {
  if (count == kLanes<float>) {
    return load_widened(from);
  }
  uint16_t rest[kLanes<float>] = {};
  __builtin_memcpy(rest, from, static_cast<size_t>(count) * sizeof(uint16_t));
  return load_widened(rest);
}

inline void store_narrowed(Vector<float> value, uint16_t* to, int64_t count) {
  if (count == kLanes<float>) {
    return store_narrowed(value, to);
  }
  uint16_t rest[kLanes<float>];
  store_narrowed(value, rest);
  __builtin_memcpy(to, rest, static_cast<size_t>(count) * sizeof(uint16_t));
}

/// Rows of bfloat16 in one go, without a stop in memory.
template <bool kGelu>
void activate_rows(const uint16_t* from, const float* bias, uint16_t* to, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, from += columns, to += columns) {
    each_row_vector(columns, [&](int64_t j, int64_t count) {
      const Vector<float> x = load_widened(from + j, count) + load(bias + j);
      const Vector<float> y = kGelu ? rounded_gelu(x) : (x <= Vector<float>{} ? Vector<float>{} : x);
      store_narrowed(y, to + j, count);
    });
  }
}

template <bool kGelu>
void differentiate_rows(const uint16_t* from, const float* bias, const uint16_t* gradient, uint16_t* to, float* sums,
                        int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i, from += columns, gradient += columns, to += columns) {
    each_row_vector(columns, [&](int64_t j, int64_t count) {
      const Vector<float> x = load_widened(from + j, count) + load(bias + j);
      const Vector<float> dy = load_widened(gradient + j, count);
      const Vector<float> dx = kGelu ? dy * rounded_gelu_slope(x) : (x <= Vector<float>{} ? Vector<float>{} : dy);
      store_narrowed(dx, to + j, count);
      store<float>(sums + j, load(sums + j) + dx);
    });
  }
}

inline void activate_bfloat16(const uint16_t* from, const float* bias, uint16_t* to, int64_t rows, int64_t columns,
                              bool gelu) {
  (gelu ? activate_rows<true> : activate_rows<false>)(from, bias, to, rows, columns);
}

inline void differentiate_bfloat16(const uint16_t* from, const float* bias, const uint16_t* gradient, uint16_t* to,
                                   float* sums, int64_t rows, int64_t columns, bool gelu) {
  (gelu ? differentiate_rows<true> : differentiate_rows<false>)(from, bias, gradient, to, sums, rows, columns);
}

}  // namespace dba::ops::cpu::DBA_ISA
