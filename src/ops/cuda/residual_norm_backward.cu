#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/residual_norm.cuh"

namespace dba::ops::cuda {
namespace {

/// Sums over rows that the backward makes, in the order of ResidualNormBackward::sums.
constexpr int kSums = 3;
/// Blocks of the pass over the rows, each of which leaves one partial sum: six for each multiprocessor of an H200, half
/// of which run at a time.
constexpr int64_t kBlocks = 792;

/// Twelve warps a multiprocessor for half types; 512 threads to a block for the others.
template <class R>
constexpr int kRegisters = sizeof(R) == 2 ? 168 : 128;

template <class R, class B, bool whole>
__global__ void __maxnreg__(kRegisters<R>)
    backward_kernel(ResidualNormBackward given, int width, int64_t quads_per_block, uint32_t threshold,
                    WideOf<R> kept_scale) {
  using A = WideOf<R>;
  constexpr int kOwn = kColumns<R>;
  __shared__ A boards[2][kMaxThreads<R> / kWarp * 2 * kQuad];
  __shared__ A columns[kMaxThreads<R> * kOwn];
  const Place place(width, kOwn);
  const int d = given.shape.d;
  const int64_t rows = given.shape.rows;
  const A share = A(1) / static_cast<A>(d);
  const KeepKey key(given.dropout.rng, threshold);
  const auto* const x = static_cast<const R*>(given.x);
  const auto* const branch = static_cast<const B*>(given.branch);
  const auto* const dsum = static_cast<const R*>(given.dsum);
  const auto* const dy = static_cast<const B*>(given.dy);
  const bool normed = dy != nullptr;

  A totals[kSums][kOwn] = {};
  const int64_t first = static_cast<int64_t>(blockIdx.x) * quads_per_block;
  int turn = 0;
  // Every group takes every turn: the sums over groups meet at a barrier.
  for (int64_t quad = first + place.group; quad - place.group < first + quads_per_block; quad += place.groups) {
    const bool mine = quad < first + quads_per_block;
    Pack<R, kOwn> base[kQuad];
    Pack<B, kOwn> added[kQuad];
    Pack<B, kOwn> above[kQuad];
#pragma unroll
    for (int row = 0; row < kQuad; ++row) {
      const int64_t i = quad * kQuad + row;
      const bool real = mine && i < rows;
      base[row] = load<kOwn, whole>(x + i * d, place.column, d, normed && real);
      added[row] = load<kOwn, whole>(branch + i * d, place.column, d, branch != nullptr && real);
      above[row] = load<kOwn, whole>(dy + i * d, place.column, d, normed && real);
    }
    const auto kept = keep_bits<kOwn>(key, quad, place.column);

    A h[kQuad][kOwn];
    A sums[2 * kQuad];
    A rstd[kQuad];
    const auto weight = load_columns<kOwn>(static_cast<const A*>(given.weight), A(1), place.column, d);
    if (normed) {
      const auto branch_bias = load_columns<kOwn>(static_cast<const A*>(given.branch_bias), A(0), place.column, d);
#pragma unroll
      for (int row = 0; row < kQuad; ++row) {
        const int64_t at = quad * kQuad + row;
        const bool real = mine && at < rows;
        const A mean = real ? static_cast<const A*>(given.mean)[at] : A(0);
        rstd[row] = real ? static_cast<const A*>(given.rstd)[at] : A(0);
        sums[row] = 0;
        sums[kQuad + row] = 0;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          A sum = widen<A>(base[row].value[i]);
          if (branch != nullptr) {
            const A scale = kept >> (row * kOwn + i) & 1u ? kept_scale : A(0);
            sum += scale * (widen<A>(added[row].value[i]) + branch_bias.value[i]);
          }
          // Beyond the last row rstd is 0, beyond the last column dy is.
          h[row][i] = (sum - mean) * rstd[row];
          const A gradient = widen<A>(above[row].value[i]);
          sums[row] += gradient * weight.value[i];
          sums[kQuad + row] += gradient * weight.value[i] * h[row][i];
          totals[1][i] += gradient * h[row][i];
          totals[2][i] += gradient;
        }
      }
      sum_over_group(sums, place, boards[turn]);
      turn ^= 1;
    }
#pragma unroll
    for (int row = 0; row < kQuad; ++row) {
      const int64_t at = quad * kQuad + row;
      if (!mine || at >= rows) {
        continue;
      }
      const auto beside = load<kOwn, whole>(dsum + at * d, place.column, d, dsum != nullptr);
      Pack<R, kOwn> to_residual;
      Pack<B, kOwn> to_branch;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        A dh = widen<A>(beside.value[i]);
        if (normed) {
          const A scaled = widen<A>(above[row].value[i]) * weight.value[i];
          dh += rstd[row] * (scaled - share * (sums[row] + h[row][i] * sums[kQuad + row]));
        }
        const A dropped = kept >> (row * kOwn + i) & 1u ? dh * kept_scale : A(0);
        totals[0][i] += dropped;
        to_residual.value[i] = narrow<R>(dh);
        to_branch.value[i] = narrow<B>(dropped);
      }
      if (given.dresidual != nullptr) {
        store<kOwn, whole>(to_residual, static_cast<R*>(given.dresidual) + at * d, place.column, d);
      }
      if (given.dbranch != nullptr) {
        store<kOwn, whole>(to_branch, static_cast<B*>(given.dbranch) + at * d, place.column, d);
      }
    }
  }

  auto* const partial = static_cast<A*>(given.workspace) + static_cast<int64_t>(blockIdx.x) * kSums * d;
#pragma unroll
  for (int which = 0; which < kSums; ++which) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      columns[i * blockDim.x + threadIdx.x] = totals[which][i];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < d; column += blockDim.x) {
      CompensatedSum<A> sum;
      for (int group = 0; group < place.groups; ++group) {
        sum.add(columns[column % kOwn * blockDim.x + group * width + column / kOwn]);
      }
      partial[which * d + column] = sum.sum;
    }
  }
}

int64_t quads_per_block(const ResidualNormShape& shape) {
  const int64_t quads = (shape.rows + kQuad - 1) / kQuad;
  const int64_t groups = Launch(shape).groups;
  const int64_t even = (quads + kBlocks - 1) / kBlocks;
  return even < groups ? groups : even;
}

}  // namespace

int64_t residual_norm_partials(const ResidualNormShape& shape) {
  const int64_t quads = (shape.rows + kQuad - 1) / kQuad;
  const int64_t each = quads_per_block(shape);
  return (quads + each - 1) / each;
}

cudaError_t residual_norm_backward(const ResidualNormBackward& given, cudaStream_t stream) {
  const Launch launch(given.shape);
  const int64_t blocks = residual_norm_partials(given.shape);
  return for_types(given.shape, [&](auto r, auto b, auto whole) {
    using R = decltype(r);
    using B = decltype(b);
    using A = WideOf<R>;
    if (blocks > 0) {
      backward_kernel<R, B, whole()><<<static_cast<unsigned>(blocks), launch.threads, 0, stream>>>(
          given, launch.width, quads_per_block(given.shape), philox::threshold(given.dropout.p),
          static_cast<A>(1.0 / (1.0 - given.dropout.p)));
      if (const auto error = cudaGetLastError(); error != cudaSuccess) {
        return error;
      }
    }
    return add_partials<A>(given.workspace, blocks, kSums * given.shape.d, given.sums, stream);
  });
}

}  // namespace dba::ops::cuda
