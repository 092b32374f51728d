#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

/// Products of tiles in shared memory into accumulators in registers, for four kinds of arithmetic behind one layout.
///
/// A warp's product is (16·MI) × (16·NG). Lane = 4·g + t, g in 0 … 7, t in 0 … 3, holds in acc[mi][2q + h][i]
///   row mi·row_step + g + 8·(i / 2),   column q·group_step + 8·h + 2·t + i % 2,
/// which is the accumulator of mma.m16n8k16 and m16n8k8; the float32 product keeps to it. row_step is 16 but where two
/// tiles, one behind the other, are multiplied at once.
namespace dba::ops::cuda::general {

/// Which index of an operand tile lies side by side in shared memory: the summed one, or the row or column.
enum class Contiguous { depth, outer };

__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x) & 31;
}
__device__ inline int warp_index() {
  return static_cast<int>(threadIdx.x) >> 5;
}

/// Four 8×8 matrices of 16-bit entries; lanes 8j … 8j + 7 give the rows of matrix j. Lane (g, t) receives the entries
/// (g, 2t), (g, 2t + 1) of each matrix, or (2t, g), (2t + 1, g) with kTransposed.
template <bool kTransposed>
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  }
}

__device__ inline float sum_of_quad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
__device__ inline float max_of_quad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

/// exp with an error that grows with |x|: fine where the result is rounded to 16 bits.
__device__ inline float quick_exp(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
  return result;
}

/// The 16-bit types: m16n8k16, operands by ldmatrix. `Derived` gives the mma.
template <class Derived, class E>
struct HalfArithmetic {
  using Element = E;
  static constexpr int kDepthStep = 16;

  __device__ static float exponential(float x) {
    return quick_exp(x);
  }

  /// acc += A B over `depth` (a multiple of 16). A's tile is (rows, depth) or (depth, rows), B's (columns, depth) or
  /// (depth, columns), by kA and kB; the first `groups` groups of 16 columns, `group_step` columns apart, take part.
  template <int MI, int NG, Contiguous kA, Contiguous kB>
  __device__ static void product(float (&acc)[MI][2 * NG][4], const E* a, int a_stride, const E* b, int b_stride,
                                 int group_step, int groups, int depth, int row_step = 16) {
    constexpr bool kATransposed = kA == Contiguous::outer;
    constexpr bool kBTransposed = kB == Contiguous::outer;
    const int lane = lane_index();
    const int low = lane & 7, middle = (lane >> 3) & 1, high = lane >> 4;
    // A's four matrices: rows 0-7 and 8-15 at depth 0-7, then both at depth 8-15.
    a += kATransposed ? (low + 8 * high) * a_stride + 8 * middle : (low + 8 * middle) * a_stride + 8 * high;
    // B's four: depth 0-7 and 8-15 of columns 0-7, then both of columns 8-15.
    b += kBTransposed ? (low + 8 * middle) * b_stride + 8 * high : (low + 8 * high) * b_stride + 8 * middle;
#pragma unroll 2
    for (int k = 0; k < depth; k += kDepthStep) {
      uint32_t left[MI][4];
#pragma unroll
      for (int mi = 0; mi < MI; ++mi) {
        load_matrices<kATransposed>(left[mi],
                                    a + (kATransposed ? k * a_stride + mi * row_step : mi * row_step * a_stride + k));
      }
#pragma unroll
      for (int q = 0; q < NG; ++q) {
        if (q < groups) {
          uint32_t right[4];
          load_matrices<kBTransposed>(
              right, b + (kBTransposed ? k * b_stride + q * group_step : q * group_step * b_stride + k));
#pragma unroll
          for (int mi = 0; mi < MI; ++mi) {
            Derived::multiply_add(acc[mi][2 * q], left[mi], right[0], right[1]);
            Derived::multiply_add(acc[mi][2 * q + 1], left[mi], right[2], right[3]);
          }
        }
      }
    }
  }
};

struct Float16 : HalfArithmetic<Float16, __half> {
  __device__ static __half round(float x) {
    return __float2half_rn(x);
  }
  __device__ static float widen(__half x) {
    return __half2float(x);
  }
  __device__ static void multiply_add(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

struct Bfloat16 : HalfArithmetic<Bfloat16, __nv_bfloat16> {
  __device__ static __nv_bfloat16 round(float x) {
    return __float2bfloat16_rn(x);
  }
  __device__ static float widen(__nv_bfloat16 x) {
    return __bfloat162float(x);
  }
  __device__ static void multiply_add(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

/// float32 as it is.
struct Float32 {
  using Element = float;

  __device__ static float exponential(float x) {
    return expf(x);
  }
  __device__ static float round(float x) {
    return x;
  }
  __device__ static float widen(float x) {
    return x;
  }

  /// As HalfArithmetic's, but a sum of sums of 32 products, which rounds less than one long sum: steep softmaxes make
  /// relative errors of the scores' absolute ones, and a range may have thousands of tokens.
  template <int MI, int NG, Contiguous kA, Contiguous kB>
  __device__ static void product(float (&acc)[MI][2 * NG][4], const float* a, int a_stride, const float* b,
                                 int b_stride, int group_step, int groups, int depth, int row_step = 16) {
#pragma unroll 1
    for (int k = 0; k < depth; k += 32) {
      float run[MI][2 * NG][4] = {};
      add_products<MI, NG, kA, kB>(run, a, a_stride, b, b_stride, group_step, groups, k, min(k + 32, depth), row_step);
#pragma unroll
      for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
        for (int n = 0; n < 2 * NG; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            acc[mi][n][i] += run[mi][n][i];
          }
        }
      }
    }
  }

 private:
  template <int MI, int NG, Contiguous kA, Contiguous kB>
  __device__ static void add_products(float (&acc)[MI][2 * NG][4], const float* a, int a_stride, const float* b,
                                      int b_stride, int group_step, int groups, int first, int after, int row_step) {
    const int g = lane_index() >> 2, t = lane_index() & 3;
    for (int k = first; k < after; k += 4) {
      float left[MI][2][4];
#pragma unroll
      for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = mi * row_step + g + 8 * half;
          if constexpr (kA == Contiguous::depth) {
            const float4 value = *reinterpret_cast<const float4*>(a + row * a_stride + k);
            left[mi][half][0] = value.x, left[mi][half][1] = value.y;
            left[mi][half][2] = value.z, left[mi][half][3] = value.w;
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              left[mi][half][j] = a[(k + j) * a_stride + row];
            }
          }
        }
      }
#pragma unroll
      for (int n = 0; n < 2 * NG; ++n) {
        if (n / 2 < groups) {
          const int column = (n / 2) * group_step + 8 * (n % 2) + 2 * t;
          float right[2][4];
          if constexpr (kB == Contiguous::depth) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const float4 value = *reinterpret_cast<const float4*>(b + (column + e) * b_stride + k);
              right[e][0] = value.x, right[e][1] = value.y, right[e][2] = value.z, right[e][3] = value.w;
            }
          } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const float2 value = *reinterpret_cast<const float2*>(b + (k + j) * b_stride + column);
              right[0][j] = value.x, right[1][j] = value.y;
            }
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                acc[mi][n][i] = fmaf(left[mi][i / 2][j], right[i % 2][j], acc[mi][n][i]);
              }
            }
          }
        }
      }
    }
  }
};

/// float32 whose factors are rounded to TF32: m16n8k8. An 8×8 matrix of 16-bit entries is an 8×4 one of floats, so
/// ldmatrix hands lane (g, t) the float (g, t): just the operand's layout. There is no transposing form of it.
struct TensorFloat32 : Float32 {
  static constexpr int kDepthStep = 8;

  __device__ static uint32_t rounded(uint32_t bits) {
    uint32_t result;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(__uint_as_float(bits)));
    return result;
  }
  __device__ static void multiply_add(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  template <int MI, int NG, Contiguous kA, Contiguous kB>
  __device__ static void product(float (&acc)[MI][2 * NG][4], const float* a, int a_stride, const float* b,
                                 int b_stride, int group_step, int groups, int depth, int row_step = 16) {
    const int lane = lane_index();
    const int low = lane & 7, middle = (lane >> 3) & 1, high = lane >> 4;
    const int g = lane >> 2, t = lane & 3;
    // A by matrices: rows 0-7 and 8-15 at depth 0-3, then both at depth 4-7. By entries: those of lane (g, t).
    a += kA == Contiguous::depth ? (low + 8 * middle) * a_stride + 4 * high : t * a_stride + g;
    // B by matrices: depth 0-3 and 4-7 of columns 0-7, then both of columns 8-15.
    b += kB == Contiguous::depth ? (low + 8 * high) * b_stride + 4 * middle : t * b_stride + g;
    for (int k = 0; k < depth; k += kDepthStep) {
      uint32_t left[MI][4];
#pragma unroll
      for (int mi = 0; mi < MI; ++mi) {
        if constexpr (kA == Contiguous::depth) {
          load_matrices<false>(left[mi], a + mi * row_step * a_stride + k);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            left[mi][i] = __float_as_uint(a[(k + 4 * (i / 2)) * a_stride + mi * row_step + 8 * (i % 2)]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          left[mi][i] = rounded(left[mi][i]);
        }
      }
#pragma unroll
      for (int q = 0; q < NG; ++q) {
        if (q < groups) {
          uint32_t right[4];
          if constexpr (kB == Contiguous::depth) {
            load_matrices<false>(right, b + q * group_step * b_stride + k);
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              right[i] = __float_as_uint(b[(k + 4 * (i % 2)) * b_stride + q * group_step + 8 * (i / 2)]);
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            right[i] = rounded(right[i]);
          }
#pragma unroll
          for (int mi = 0; mi < MI; ++mi) {
            multiply_add(acc[mi][2 * q], left[mi], right[0], right[1]);
            multiply_add(acc[mi][2 * q + 1], left[mi], right[2], right[3]);
          }
        }
      }
    }
  }
};

template <int MI, int N>
__device__ inline void clear(float (&acc)[MI][N][4]) {
#pragma unroll
  for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        acc[mi][n][i] = 0.0f;
      }
    }
  }
}

}  // namespace dba::ops::cuda::general
