#pragma once

#ifdef __CUDACC__
#define DBA_HOST_DEVICE __host__ __device__
#else
#define DBA_HOST_DEVICE
#endif

/// The tail of the normal distribution by one exponential, for results that are rounded to float16 or bfloat16.
/// Free of torch and of CUDA headers.
namespace dba {

/// From here on the tail is less than float can hold.
constexpr float kNormalTailEnd = 16.0f;

/// log₂ Φ(−a) for 0 ≤ a ≤ kNormalTailEnd. 2 to this power differs from Φ(−a) by less than 1e-5 of it up to a = 6.5,
/// against 4.9e-4, half a unit in the last place of float16; beyond, a times the difference is less than 2e-14. A
/// minimax fit on [0, 6.5] of odd degree and negative leading coefficient: it falls for ever, as the tail does.
/// Number: float, or a vector of them.
template <class Number>
DBA_HOST_DEVICE inline Number normal_tail_log2(Number a) {
  Number value = Number{} - 1.75777734e-06f;
  value = value * a + 5.99365994e-05f;
  value = value * a - 0.000916363089f;
  value = value * a + 0.00844738632f;
  value = value * a - 0.053824503f;
  value = value * a - 0.45861572f;
  value = value * a - 1.15118015f;
  return value * a - 1.00000381f;
}

}  // namespace dba
