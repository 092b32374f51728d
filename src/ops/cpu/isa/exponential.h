#pragma once

#include "ops/cpu/isa/vector.h"

namespace dba::ops::cpu::DBA_ISA {

template <class T>
struct Exponential;

// exp(x) = 2ⁿ exp(x − n ln 2) with |x − n ln 2| ≤ ln 2 / 2, where the Taylor series up to the given degree is exact to
// less than an eighth of the last place. ln 2 is split so that n · high is exact.
template <>
struct Exponential<float> {
  static constexpr int kDegree = 7;
  static constexpr float kSmallest = -87.0f;  // below it the result is 0
  static constexpr float kLargest = 88.0f;
  static constexpr float kHigh = 0.693359375f;
  static constexpr float kLow = -2.12194440e-4f;
  static constexpr float kRound = 12582912.0f;  // 1.5 · 2²³: adding it rounds to an integer
  static constexpr int32_t kRoundBits = 0x4B400000;
  static constexpr int32_t kBias = 127;
  static constexpr int kMantissa = 23;
};

template <>
struct Exponential<double> {
  static constexpr int kDegree = 13;
  static constexpr double kSmallest = -708.0;
  static constexpr double kLargest = 709.0;
  static constexpr double kHigh = 6.93145751953125e-1;
  static constexpr double kLow = 1.42860682030941723212e-6;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 · 2⁵²
  static constexpr int64_t kRoundBits = 0x4338000000000000;
  static constexpr int64_t kBias = 1023;
  static constexpr int kMantissa = 52;
};

template <class T>
constexpr T inverse_factorial(int n) {
  double value = 1.0;
  for (int i = 2; i <= n; ++i) {
    value *= i;
  }
  return static_cast<T>(1.0 / value);
}

/// NaN gives NaN; −inf gives 0.
template <class T>
inline Vector<T> exponential(Vector<T> x) {
  using Constants = Exponential<T>;
  constexpr T kLog2E = static_cast<T>(1.4426950408889634);
  const Vector<T> limit = spread(Constants::kLargest);
  const Vector<T> bounded = x > limit ? limit : x;
  const Vector<T> shifted = bounded * kLog2E + Constants::kRound;
  const Vector<T> n = shifted - Constants::kRound;
  const Vector<T> rest = (bounded - n * Constants::kHigh) - n * Constants::kLow;
  Vector<T> series = spread(inverse_factorial<T>(Constants::kDegree));
#pragma GCC unroll 16
  for (int i = Constants::kDegree - 1; i >= 0; --i) {
    series = series * rest + inverse_factorial<T>(i);
  }
  const Integer<T> exponent = (reinterpret_cast<Integer<T>>(shifted) - Constants::kRoundBits + Constants::kBias)
                              << Constants::kMantissa;
  const Vector<T> value = series * reinterpret_cast<Vector<T>>(exponent);
  return x < spread(Constants::kSmallest) ? Vector<T>{} : value;
}

}  // namespace dba::ops::cpu::DBA_ISA
