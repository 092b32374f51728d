#include "ops/cuda/residual_norm.cuh"

namespace dba::ops::cuda {
namespace {

template <class R, class B, bool whole>
__global__ void __launch_bounds__(kMaxThreads<R>)
    forward_kernel(ResidualNormForward given, int width, uint32_t threshold, WideOf<R> kept_scale) {
  using A = WideOf<R>;
  constexpr int kOwn = kColumns<R>;
  __shared__ A boards[2][kMaxThreads<R> / kWarp * kQuad];
  const Place place(width, kOwn);
  const int d = given.shape.d;
  const int64_t quad = static_cast<int64_t>(blockIdx.x) * place.groups + place.group;
  const auto* const residual = static_cast<const R*>(given.residual);
  const auto* const branch = static_cast<const B*>(given.branch);

  Pack<R, kOwn> base[kQuad];
  Pack<B, kOwn> added[kQuad];
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    const int64_t i = quad * kQuad + row;
    base[row] = load<kOwn, whole>(residual + i * d, place.column, d, i < given.shape.rows);
    added[row] = load<kOwn, whole>(branch + i * d, place.column, d, branch != nullptr && i < given.shape.rows);
  }
  const auto kept = keep_bits<kOwn>(KeepKey(given.dropout.rng, threshold), quad, place.column);
  const auto branch_bias = load_columns<kOwn>(static_cast<const A*>(given.branch_bias), A(0), place.column, d);

  A h[kQuad][kOwn];
  A sums[kQuad];
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    sums[row] = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const A value = widen<A>(added[row].value[i]) + branch_bias.value[i];
      const A scale = kept >> (row * kOwn + i) & 1u ? kept_scale : A(0);
      h[row][i] = widen<A>(base[row].value[i]) + scale * value;
    }
    if (given.sum != nullptr) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        base[row].value[i] = narrow<R>(h[row][i]);
        h[row][i] = widen<A>(base[row].value[i]);
      }
      const int64_t at = quad * kQuad + row;
      if (at < given.shape.rows) {
        store<kOwn, whole>(base[row], static_cast<R*>(given.sum) + at * d, place.column, d);
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      sums[row] += place.column + i < d ? h[row][i] : A(0);
    }
  }
  if (given.y == nullptr) {
    return;
  }
  const A share = A(1) / static_cast<A>(d);
  sum_over_group(sums, place, boards[0]);
  A mean[kQuad];
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    mean[row] = sums[row] * share;
    sums[row] = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      h[row][i] -= mean[row];
      sums[row] += place.column + i < d ? h[row][i] * h[row][i] : A(0);
    }
  }
  sum_over_group(sums, place, boards[1]);
  const auto weight = load_columns<kOwn>(static_cast<const A*>(given.weight), A(1), place.column, d);
  const auto bias = load_columns<kOwn>(static_cast<const A*>(given.bias), A(0), place.column, d);
#pragma unroll
  for (int row = 0; row < kQuad; ++row) {
    const int64_t at = quad * kQuad + row;
    if (at >= given.shape.rows) {
      continue;
    }
    const A rstd = A(1) / sqrt(sums[row] * share + static_cast<A>(given.eps));
    if (place.column == 0) {
      static_cast<A*>(given.mean)[at] = mean[row];
      static_cast<A*>(given.rstd)[at] = rstd;
    }
    Pack<B, kOwn> y;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      y.value[i] = narrow<B>(h[row][i] * rstd * weight.value[i] + bias.value[i]);
    }
    store<kOwn, whole>(y, static_cast<B*>(given.y) + at * d, place.column, d);
  }
}

}  // namespace

cudaError_t residual_norm_forward(const ResidualNormForward& given, cudaStream_t stream) {
  if (given.shape.rows == 0) {
    return cudaSuccess;
  }
  const Launch launch(given.shape);
  const int64_t quads = (given.shape.rows + kQuad - 1) / kQuad;
  const auto blocks = static_cast<unsigned>((quads + launch.groups - 1) / launch.groups);
  return for_types(given.shape, [&](auto r, auto b, auto whole) {
    using R = decltype(r);
    using B = decltype(b);
    forward_kernel<R, B, whole()><<<blocks, launch.threads, 0, stream>>>(
        given, launch.width, philox::threshold(given.dropout.p), static_cast<WideOf<R>>(1.0 / (1.0 - given.dropout.p)));
    return cudaGetLastError();
  });
}

}  // namespace dba::ops::cuda
