#include "ops/cuda/activate.cuh"

namespace dba::ops::cuda {
namespace {

/// Blocks that a multiprocessor shall hold, by the registers that are left to a thread: enough of both kinds to have
/// all loads of a quad under way and to hide the arithmetic.
template <class T>
constexpr int kResidents = sizeof(T) == 2 ? 5 : 4;

template <class T, ActivateKind kind, bool whole>
__global__ void __launch_bounds__(kActivateThreads, kResidents<T>)
    forward_kernel(ActivateForward given, uint32_t threshold, WideOf<T> kept_scale) {
  using A = WideOf<T>;
  constexpr int kOwn = kColumns<T>;
  const int d = given.shape.d;
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kOwn;
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (column >= d) {
    return;
  }
  const int64_t first = quad * kQuad;
  const int present = rows_present(given.shape.rows, first);
  const auto* const hidden = static_cast<const T*>(given.hidden) + first * d;
  Pack<T, kOwn> entries[kQuad];
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    entries[row] = load<kOwn, whole>(hidden + static_cast<int64_t>(row) * d, column, d, row < present);
  }
  const QuadWords<kOwn> words(KeepKey(given.dropout.rng, threshold), quad, column);
#pragma unroll
  for (int i = 0; i < kOwn; i += kPair) {
    const auto bias = bias_pair<whole, A>(given.bias, column + i, d);
#pragma unroll
    for (int row = 0; row < kQuad; ++row) {
      A active[kPair];
#pragma unroll
      for (int k = 0; k < kPair; ++k) {
        const A x = widen<A>(entries[row].value[i + k]) + bias.value[k];
        const A scale = words.of[i + k].word[row] >= threshold ? kept_scale : A(0);
        active[k] = ActivationOf<T, kind>::value(x) * scale;
      }
      narrow_pair(&entries[row].value[i], active);
    }
  }
  auto* const y = static_cast<T*>(given.y) + first * d;
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    if (row < present) {
      store<kOwn, whole>(entries[row], y + static_cast<int64_t>(row) * d, column, d);
    }
  }
}

}  // namespace

cudaError_t activate_forward(const ActivateForward& given, cudaStream_t stream) {
  if (given.shape.rows == 0) {
    return cudaSuccess;
  }
  const ActivateTiling tiling(given.shape);
  const dim3 grid(static_cast<unsigned>((tiling.quads + tiling.block.y - 1) / tiling.block.y), tiling.tiles);
  return for_form(given.shape, [&](auto element, auto kind, auto whole) {
    using T = decltype(element);
    forward_kernel<T, kind(), whole()><<<grid, tiling.block, 0, stream>>>(
        given, philox::threshold(given.dropout.p), static_cast<WideOf<T>>(1.0 / (1.0 - given.dropout.p)));
    return cudaGetLastError();
  });
}

}  // namespace dba::ops::cuda
