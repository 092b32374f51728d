#pragma once

#include <cstdint>

namespace dba::ops::cuda {

/// The nearest TF32 number, as the bits the tensor cores take. Half and bfloat16 numbers are TF32 numbers already.
__device__ inline uint32_t tf32_bits(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

/// sum (16×8) += a (16×8) · b (8×8), TF32 operands, float sums. Lane 4g + t holds a = (g, t), (g + 8, t), (g, t + 4),
/// (g + 8, t + 4); b = (t, g), (t + 4, g); sum = (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
__device__ inline void mma_16x8x8(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace dba::ops::cuda
