#include <cuda_runtime.h>

#include "ops/cuda/core_attend_backward.cuh"
#include "ops/cuda/kernel_row.cuh"

/// The attention between slots backwards, a thread block for one head of one sequence. Everything is float32 without
/// tensor cores: there are few operations, and their time is that of loading operands and code once.
namespace dba::ops::cuda {
namespace {

using namespace attend_backward;

/// kStaged: all operands are copied into shared memory first; else they are read where they are.
template <bool kStaged>
__global__ void __launch_bounds__(kThreads)
    core_attend_backward_kernel(const __grid_constant__ CoreAttendBackwardArguments given) {
  extern __shared__ float4 shared_memory[];
  float* const shared = reinterpret_cast<float*>(shared_memory);
  const auto thread = static_cast<int>(threadIdx.x);
  const Division block(static_cast<int>(blockIdx.x), given.heads);
  take_turn();
  const int sequence = block.quotient;
  const int head = block.remainder;
  const int d_p = given.d_p;
  const int e = given.e;
  const int query_width = given.query_width;
  const bool with_width = given.width != nullptr;
  const Layout layout(d_p, query_width, given.value_width, e, with_width, kStaged);
  const int query_row = given.heads * query_width;
  const int value_row = given.heads * given.value_width;
  const int64_t first_row = static_cast<int64_t>(sequence) * d_p;
  const int64_t query_base = first_row * query_row + head * query_width;
  const int64_t value_base = first_row * value_row + head * given.value_width;
  const int64_t narrow_base = (first_row * given.heads + head) * e;
  const int64_t width_base = static_cast<int64_t>(head) * query_width * e;

  Rows q{given.q + query_base, query_row};
  Rows k{given.k + query_base, query_row};
  Rows v{given.v + value_base, value_row};
  Rows dmixed{given.dmixed + value_base, value_row};
  if constexpr (kStaged) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const Rows from = i == 0 ? q : i == 1 ? k : i == 2 ? v : dmixed;
      const int at = i == 0 ? layout.rows[0] : i == 1 ? layout.rows[1] : i == 2 ? layout.rows[2] : layout.rows[3];
      stage_rows(shared + at, i < 2 ? layout.query_stride : layout.value_stride, from, d_p,
                 i < 2 ? query_width : given.value_width);
    }
    commit_copies();
    if (with_width) {
#pragma unroll 1
      for (int i = thread; i < round_up(query_width, 4) * e; i += kThreads) {
        const Division place(i, e);
        shared[layout.width + place.remainder * layout.query_stride + place.quotient] =
            place.quotient < query_width ? number_at(given.width, given.element, width_base + i) : 0.0f;
      }
    }
    q = {shared + layout.rows[0], layout.query_stride};
    k = {shared + layout.rows[1], layout.query_stride};
    v = {shared + layout.rows[2], layout.value_stride};
    dmixed = {shared + layout.rows[3], layout.value_stride};
    await_copies<0>();
    __syncthreads();
  }

  // dP' = dO Vᵀ, and q, k behind R.
  float* const p = shared + layout.p;
  float* const ds = shared + layout.ds;
  const int narrow_columns = with_width ? round_up(e, 4) : 0;
#pragma unroll 1
  for (int unit = thread; unit < d_p * (d_p + 2 * narrow_columns); unit += kThreads) {
    if (unit < d_p * d_p) {
      const Division place(unit, d_p);
      ds[place.quotient * layout.slot_stride + place.remainder] =
          dot<kStaged>(dmixed.at(place.quotient), v.at(place.remainder), given.value_width);
      continue;
    }
    const Division place(unit - d_p * d_p, narrow_columns);
    const int row = place.quotient;  // those of q, then those of k
    const int column = place.remainder;
    const float* const from = row < d_p ? q.at(row) : k.at(row - d_p);
    float sum = 0.0f;
    if (column < e) {
      if constexpr (kStaged) {
        sum = dot<true>(from, shared + layout.width + column * layout.query_stride, query_width);
      } else {
        const auto of_width = [&](int x) {
          return number_at(given.width, given.element, width_base + static_cast<int64_t>(x) * e + column);
        };
        sum = sum_of_products(from, of_width, query_width);
      }
    }
    shared[layout.narrow[0] + row * layout.narrow_stride + column] = sum;
  }
  __syncthreads();
  if (with_width) {
    q = {shared + layout.narrow[0], layout.narrow_stride};
    k = {shared + layout.narrow[1], layout.narrow_stride};
  }
  softmax_rows<kStaged>(given, sequence, head, q, k, p, ds, layout.slot_stride);
  __syncthreads();

  // O = P' V, dV = P'ᵀ dO, and of the logits dQ = dS K, dK = dSᵀ Q, behind R where there is one; then before R.
  const float kept_scale = given.dropout.rng != nullptr ? given.dropout.scale : 1.0f;
  const int value_tiles = (given.value_width + 3) / 4;
  const int narrow_tiles = (e + 3) / 4;
  const int query_tiles = (query_width + 3) / 4;
#pragma unroll 1
  for (int before = 0; before < (with_width ? 2 : 1); ++before) {
    const int of_values = before ? 0 : d_p * value_tiles;
    const int tiles = before ? query_tiles : narrow_tiles;
    const int units = 2 * of_values + 2 * d_p * tiles;
#pragma unroll 1
    for (int unit = given.mixed == nullptr ? of_values + thread : thread; unit < units; unit += kThreads) {
      const bool values = unit < 2 * of_values;
      const int of_kind = values ? unit : unit - 2 * of_values;
      const int row_tiles = values ? value_tiles : tiles;
      const Division place(of_kind, row_tiles);
      const bool second = place.quotient >= d_p;  // rows of the first product, then of the second
      const int row = second ? place.quotient - d_p : place.quotient;
      const int column = 4 * place.remainder;
      Mixture mixture{};
      mixture.depth = d_p;
      mixture.of_row = second ? 1 : layout.slot_stride;
      mixture.of_k = second ? layout.slot_stride : 1;
      if (values) {
        mixture.a = p;
        mixture.kept_scale = kept_scale;
        mixture.b = second ? dmixed : v;
        mixture.width = given.value_width;
        mixture.out = (second ? given.dv : given.mixed) + value_base;
        mixture.out_stride = value_row;
      } else if (!before) {
        mixture.a = ds;
        mixture.b = second ? q : k;
        mixture.width = e;
        mixture.out = with_width ? (second ? given.dk_narrow : given.dq_narrow) + narrow_base
                                 : (second ? given.dk : given.dq) + query_base;
        mixture.out_stride = with_width ? given.heads * e : query_row;
        mixture.copy = with_width ? shared + (second ? layout.dnarrow[1] : layout.dnarrow[0]) : nullptr;
        mixture.copy_stride = layout.narrow_stride;
      } else {
        mixture.a = shared + (second ? layout.dnarrow[1] : layout.dnarrow[0]);
        mixture.of_row = layout.narrow_stride;
        mixture.of_k = 1;
        mixture.depth = e;
        mixture.b = {shared + layout.width, layout.query_stride};
        mixture.width = query_width;
        mixture.out = (second ? given.dk : given.dq) + query_base;
        mixture.out_stride = query_row;
      }
      const bool adds = !second && !values && (before || !with_width) && given.dcompressed != nullptr;
      mixture.add = adds ? given.dcompressed + query_base : nullptr;

      const float* a = mixture.a + row * mixture.of_row;
      float sum[4] = {};
#pragma unroll 4
      for (int x = 0; x < mixture.depth; ++x) {
        float weight = a[x * mixture.of_k];
        weight = !values ? weight : weight < 0.0f ? 0.0f : weight * mixture.kept_scale;  // NaN stays
        float4 value;
        if (kStaged || !before) {
          value = four_columns<kStaged>(mixture.b, x, column, mixture.width);
        } else {
          float numbers[4];
          for (int i = 0; i < 4; ++i) {
            numbers[i] = column + i < query_width ? number_at(given.width, given.element,
                                                              width_base + static_cast<int64_t>(column + i) * e + x)
                                                  : 0.0f;
          }
          value = make_float4(numbers[0], numbers[1], numbers[2], numbers[3]);
        }
        sum[0] = fmaf(weight, value.x, sum[0]);
        sum[1] = fmaf(weight, value.y, sum[1]);
        sum[2] = fmaf(weight, value.z, sum[2]);
        sum[3] = fmaf(weight, value.w, sum[3]);
      }
      write_four(mixture, row, column, sum);
    }
    __syncthreads();
  }
}

template <bool kStaged>
cudaError_t launch(const CoreAttendBackwardArguments& given, int64_t bytes, cudaStream_t stream) {
  const auto kernel = core_attend_backward_kernel<kStaged>;
  if (const auto status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      status != cudaSuccess) {
    return status;
  }
  return launch_in_row(kernel, static_cast<unsigned>(given.batch * given.heads), kThreads, static_cast<size_t>(bytes),
                       stream, given);
}

}  // namespace

int64_t core_attend_backward_bytes(int d_p, int e, bool with_width) {
  return Layout(d_p, 0, 0, e, with_width, false).floats * static_cast<int64_t>(sizeof(float));
}

cudaError_t core_attend_backward(const CoreAttendBackwardArguments& given, const CoreDevice& device,
                                 cudaStream_t stream) {
  const auto bytes = [&](bool staged) {
    return Layout(given.d_p, given.query_width, given.value_width, given.e, given.width != nullptr, staged).floats *
           static_cast<int64_t>(sizeof(float));
  };
  return bytes(true) <= device.shared_bytes ? launch<true>(given, bytes(true), stream)
                                            : launch<false>(given, bytes(false), stream);
}

}  // namespace dba::ops::cuda
