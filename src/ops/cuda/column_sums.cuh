#pragma once

#include <cuda_runtime.h>

#include <cstdint>

/// Sums of columns over many rows, in a fixed order: blocks leave partial sums, a second kernel adds them.
namespace dba::ops::cuda {

/// A sum that carries along what rounding has taken from it.
template <class A>
struct CompensatedSum {
  A sum = 0;
  A excess = 0;

  __device__ void add(A value) {
    const A wanted = value - excess;
    const A next = sum + wanted;
    excess = (next - sum) - wanted;
    sum = next;
  }
};

constexpr int kStripe = 32;          // columns of a block
constexpr int kStripeSegments = 32;  // threads that share a column

/// sums(column) = Σ over `count` partial sums, (count, columns). Every thread of a column adds each kStripeSegments-th
/// of them, then the first adds what they have.
template <class A>
__global__ void add_partials_kernel(const A* partials, int64_t count, int columns, A* sums) {
  __shared__ A board[kStripeSegments][kStripe];
  const int column = static_cast<int>(blockIdx.x) * kStripe + static_cast<int>(threadIdx.x);
  CompensatedSum<A> own;
  if (column < columns) {
    for (int64_t i = threadIdx.y; i < count; i += kStripeSegments) {
      own.add(partials[i * columns + column]);
    }
  }
  board[threadIdx.y][threadIdx.x] = own.sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    for (int segment = 1; segment < kStripeSegments; ++segment) {
      own.add(board[segment][threadIdx.x]);
    }
    sums[column] = own.sum;
  }
}

template <class A>
cudaError_t add_partials(const void* partials, int64_t count, int columns, void* sums, cudaStream_t stream) {
  const auto stripes = static_cast<unsigned>((columns + kStripe - 1) / kStripe);
  add_partials_kernel<A><<<stripes, dim3(kStripe, kStripeSegments), 0, stream>>>(static_cast<const A*>(partials), count,
                                                                                 columns, static_cast<A*>(sums));
  return cudaGetLastError();
}

}  // namespace dba::ops::cuda
