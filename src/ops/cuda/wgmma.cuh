#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/wgmma_instructions.cuh"

/// The tensor-core products of Hopper: D (64 × N, float, in registers) += A (64 × 16) · B (16 × N).
/// A warp group of 128 threads issues one; A comes from shared memory or registers, B from shared memory.
/// Thread t (warp w = t / 32, lane l = t % 32) holds D[16 w + l / 4 + 8 i][8 j + 2 (l % 4) + c] in d[4 j + 2 i + c].
namespace dba::ops::cuda {

/// Which way an operand lies in shared memory: its summed index runs along a row (K), or its row or column index (MN).
enum Major : int { kAlongK = 0, kAlongRows = 1 };

#define DBA_WGMMA_CHOOSE(SOURCE)                                       \
  static_assert(kColumns == 64 || kColumns == 128 || kColumns == 256); \
  if constexpr (kColumns == 64) {                                      \
    DBA_WGMMA_TYPED(DBA_WGMMA_##SOURCE##_64);                          \
  } else if constexpr (kColumns == 128) {                              \
    DBA_WGMMA_TYPED(DBA_WGMMA_##SOURCE##_128);                         \
  } else {                                                             \
    DBA_WGMMA_TYPED(DBA_WGMMA_##SOURCE##_256);                         \
  }

#define DBA_WGMMA_TYPED(INSTRUCTION) \
  if constexpr (kIsHalf<T>) {        \
    INSTRUCTION("f16.f16");          \
  } else {                           \
    INSTRUCTION("bf16.bf16");        \
  }

template <class T>
inline constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<__half> = true;

/// d = A B, or d += A B where `add`. a, b: descriptors of shared memory.
template <class T, int kColumns, Major kTransposeA, Major kTransposeB>
__device__ inline void multiply_shared(float (&d)[kColumns / 2], uint64_t a, uint64_t b, int add) {
  DBA_WGMMA_CHOOSE(SHARED)
}

/// The same with A's fragment in registers.
template <class T, int kColumns, Major kTransposeB>
__device__ inline void multiply_register(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b, int add) {
  DBA_WGMMA_CHOOSE(REGISTER)
}

#undef DBA_WGMMA_CHOOSE
#undef DBA_WGMMA_TYPED

/// Orders register and shared-memory accesses before the products that follow.
__device__ inline void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// Closes a batch of products.
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most `kPending` batches are under way.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of the accumulators across a wait.
template <int kCount>
__device__ inline void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(d[i])::"memory");
  }
}

}  // namespace dba::ops::cuda
