#include "ops/cuda/activate.cuh"
#include "ops/cuda/column_sums.cuh"

namespace dba::ops::cuda {
namespace {

/// Blocks of the pass over the rows, each of which leaves one partial sum of its columns: twelve for each
/// multiprocessor of an H200, which runs four, or three, at a time.
constexpr int64_t kBlocks = 1584;
/// Blocks that a multiprocessor shall hold, by the registers that are left to a thread.
template <class T, bool whole>
constexpr int kResidents = sizeof(T) == 2 && whole ? 4 : 3;

template <class T, ActivateKind kind, bool whole>
__global__ void __launch_bounds__(kActivateThreads, (kResidents<T, whole>))
    backward_kernel(ActivateBackward given, int64_t quads_per_block, uint32_t threshold, WideOf<T> kept_scale) {
  using A = WideOf<T>;
  constexpr int kOwn = kColumns<T>;
  __shared__ A columns[kActivateThreads * kOwn];
  const int d = given.shape.d;
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kOwn;

  A totals[kOwn] = {};
  const int64_t first = static_cast<int64_t>(blockIdx.x) * quads_per_block;
  for (int64_t quad = first + threadIdx.y; quad < first + quads_per_block && column < d; quad += blockDim.y) {
    const int present = rows_present(given.shape.rows, quad * kQuad);
    const int64_t start = quad * kQuad * d;
    Pack<T, kOwn> entries[kQuad];
    Pack<T, kOwn> gradients[kQuad];
#pragma unroll
    for (int row = 0; row < kQuad; ++row) {
      const int64_t at = start + static_cast<int64_t>(row) * d;
      entries[row] = load<kOwn, whole>(static_cast<const T*>(given.hidden) + at, column, d, row < present);
      gradients[row] = load<kOwn, whole>(static_cast<const T*>(given.dy) + at, column, d, row < present);
    }
    // The key is read again for every quad: twenty keys of rounds would else be kept in registers.
    const QuadWords<kOwn> words(KeepKey(given.dropout.rng, threshold), quad, column);
#pragma unroll
    for (int i = 0; i < kOwn; i += kPair) {
      const auto bias = bias_pair<whole, A>(given.bias, column + i, d);
#pragma unroll
      for (int row = 0; row < kQuad; ++row) {
        A gradient[kPair];
#pragma unroll
        for (int k = 0; k < kPair; ++k) {
          const A x = widen<A>(entries[row].value[i + k]) + bias.value[k];
          const A scale = words.of[i + k].word[row] >= threshold ? kept_scale : A(0);
          // Zero beyond the last row and the last column, where dy is.
          gradient[k] = widen<A>(gradients[row].value[i + k]) * scale * ActivationOf<T, kind>::slope(x);
          totals[i + k] += gradient[k];
        }
        narrow_pair(&gradients[row].value[i], gradient);
      }
    }
#pragma unroll
    for (int row = 0; row < kQuad; ++row) {
      if (row < present) {
        store<kOwn, whole>(gradients[row], static_cast<T*>(given.dhidden) + start + static_cast<int64_t>(row) * d,
                           column, d);
      }
    }
  }
  if (given.dbias == nullptr) {
    return;
  }
  const int width = static_cast<int>(blockDim.x) * kOwn;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    columns[static_cast<int>(threadIdx.y) * width + i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)] =
        totals[i];
  }
  __syncthreads();
  // The groups of threads that took different quads, in order.
  if (threadIdx.y == 0) {
    auto* const partial = static_cast<A*>(given.workspace) + static_cast<int64_t>(blockIdx.x) * d;
    for (int i = 0; i < kOwn; ++i) {
      CompensatedSum<A> sum;
#pragma unroll 1
      for (int group = 0; group < static_cast<int>(blockDim.y); ++group) {
        sum.add(columns[group * width + i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)]);
      }
      if (column + i < d) {
        partial[column + i] = sum.sum;
      }
    }
  }
}

int64_t quads_per_block(const ActivateTiling& tiling) {
  const int64_t blocks = kBlocks > tiling.tiles ? kBlocks / tiling.tiles : 1;
  const int64_t even = (tiling.quads + blocks - 1) / blocks;
  return even < tiling.block.y ? tiling.block.y : even;
}

}  // namespace

int64_t activate_partials(const ActivateShape& shape) {
  const ActivateTiling tiling(shape);
  const int64_t each = quads_per_block(tiling);
  return (tiling.quads + each - 1) / each;
}

cudaError_t activate_backward(const ActivateBackward& given, cudaStream_t stream) {
  const ActivateTiling tiling(given.shape);
  const int64_t blocks = activate_partials(given.shape);
  return for_form(given.shape, [&](auto element, auto kind, auto whole) {
    using T = decltype(element);
    using A = WideOf<T>;
    if (blocks > 0) {
      const dim3 grid(static_cast<unsigned>(blocks), tiling.tiles);
      backward_kernel<T, kind(), whole()>
          <<<grid, tiling.block, 0, stream>>>(given, quads_per_block(tiling), philox::threshold(given.dropout.p),
                                              static_cast<A>(1.0 / (1.0 - given.dropout.p)));
      if (const auto error = cudaGetLastError(); error != cudaSuccess) {
        return error;
      }
    }
    if (given.dbias == nullptr) {
      return cudaSuccess;
    }
    return add_partials<A>(given.workspace, blocks, given.shape.d, given.dbias, stream);
  });
}

}  // namespace dba::ops::cuda
