#include <algorithm>

#include "ops/cuda/core_attend.cuh"

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostRows = 32;

/// The arrays in shared memory, in floats from the start; rows of (head, sequence, slot).
struct Layout {
  int slot_stride, narrow_stride, mixed_stride;
  int p, dropped, dp;
  int narrow[2], dnarrow[2];  // with R: q, k behind it and their gradients
  int mixed;                  // with LayerNorm: O of all heads, then its gradient
  int floats;

  __host__ __device__ Layout(int rows, int heads, int d_p, int value_width, int e, bool with_width, bool with_norm) {
    slot_stride = padded_stride(d_p);
    narrow_stride = with_width ? e | 1 : 0;
    mixed_stride = with_norm ? padded_stride(heads * value_width) : 0;
    const int slots = heads * rows * slot_stride;
    const int narrow_floats = heads * rows * narrow_stride;
    p = 0;
    dropped = slots;
    dp = 2 * slots;
    narrow[0] = 3 * slots;
    narrow[1] = narrow[0] + narrow_floats;
    dnarrow[0] = narrow[1] + narrow_floats;
    dnarrow[1] = dnarrow[0] + narrow_floats;
    mixed = dnarrow[1] + narrow_floats;
    floats = mixed + rows * mixed_stride;
  }
};

/// dp holds the gradient of P' after dropout on entry, that of the logits on return.
__device__ void softmax_backward(const BlockShare& share, const float* p, const float* dropped, float* dp, int stride,
                                 float keep_scale, float logit_scale) {
  const int lane = threadIdx.x & 31;
  for (int unit = threadIdx.x / 32; unit < share.heads * share.rows(); unit += kThreads / 32) {
    const int64_t base = static_cast<int64_t>(unit) * stride;
    float sum = 0.0f;
    for (int key = lane; key < share.d_p; key += 32) {
      // What was dropped is zero; where P' itself is, the gradient is as well.
      sum = fmaf(p[base + key], dropped[base + key] != 0.0f ? dp[base + key] * keep_scale : 0.0f, sum);
    }
    sum = group_sum<32>(sum);
    for (int key = lane; key < stride; key += 32) {
      const bool inside = key < share.d_p;
      const float kept = inside && dropped[base + key] != 0.0f ? dp[base + key] * keep_scale : 0.0f;
      dp[base + key] = inside ? p[base + key] * (kept - sum) * logit_scale : 0.0f;
    }
  }
}

/// Forward and backward of the LayerNorm over the rows of `mixed` (O), which becomes O's gradient.
template <class T>
__device__ void norm_backward(const CoreAttendBackwardArguments& given, int rows, int64_t first_row, float* mixed,
                              int stride) {
  const int lane = threadIdx.x & 31;
  const int width = given.heads * given.value_width;
  const T* const weight = static_cast<const T*>(given.norm_weight);
  const T* const bias = static_cast<const T*>(given.norm_bias);
  for (int i = threadIdx.x / 32; i < rows; i += kThreads / 32) {
    float* const row = mixed + i * stride;
    const int64_t base = (first_row + i) * width;
    const Moments moments(row, width);
    float sum = 0.0f;
    float products = 0.0f;
    for (int j = lane; j < width; j += 32) {
      const float unit = (row[j] - moments.mean) * moments.rstd;
      const float gradient = given.dnormed[base + j];
      given.normed[base + j] = fmaf(unit, widened(weight[j]), widened(bias[j]));
      given.dnorm_products[base + j] = gradient * unit;
      sum = fmaf(gradient, widened(weight[j]), sum);
      products = fmaf(gradient * widened(weight[j]), unit, products);
    }
    sum = group_sum<32>(sum) / static_cast<float>(width);
    products = group_sum<32>(products) / static_cast<float>(width);
    for (int j = lane; j < width; j += 32) {
      const float unit = (row[j] - moments.mean) * moments.rstd;
      row[j] = moments.rstd * (given.dnormed[base + j] * widened(weight[j]) - sum - unit * products);
    }
  }
}

template <class T, class Math>
__global__ void __launch_bounds__(kThreads, 1)
    core_attend_backward_kernel(const CoreAttendBackwardArguments given, int group, int block_heads) {
  extern __shared__ float4 shared_memory[];
  float* shared = reinterpret_cast<float*>(shared_memory);
  const int head_blocks = given.heads / block_heads;
  const int first = blockIdx.x / head_blocks * group;
  const BlockShare share{first, min(group, given.batch - first),
                         static_cast<int>(blockIdx.x) % head_blocks * block_heads, block_heads, given.d_p};
  const int rows = share.rows();
  const int64_t first_row = static_cast<int64_t>(first) * given.d_p;
  const bool with_width = given.width != nullptr;
  const bool with_norm = given.norm_weight != nullptr;
  const Layout layout(group * given.d_p, block_heads, given.d_p, given.value_width, given.e, with_width, with_norm);
  const int query_width = given.query_width;
  const int value_width = given.value_width;
  const int query_stride = given.heads * query_width;
  const int value_stride = given.heads * value_width;
  const int64_t query_base = first_row * query_stride + share.first_head * query_width;
  const int64_t value_base = first_row * value_stride + share.first_head * value_width;
  const HeadRows v{given.v + value_base, value_stride, value_width};
  HeadRows q{given.q + query_base, query_stride, query_width};
  HeadRows k{given.k + query_base, query_stride, query_width};
  const T* const width = static_cast<const T*>(given.width);

  if (with_width) {
    for (int keys = 0; keys < 2; ++keys) {
      const HeadRows from = keys ? k : q;
      float* const out = shared + (keys ? layout.narrow[1] : layout.narrow[0]);
      for_each_sequence_tile(share, given.e, 8, [&](int head, int row, int slot, int column) {
        const Along<float, false> a{{from.at(row, head), 0, from.stride, given.d_p}, slot, given.d_p, query_width};
        const Across<T, false> b{
            {width + static_cast<int64_t>(share.first_head + head) * query_width * given.e, 0, given.e, query_width},
            column,
            given.e,
            query_width};
        tile_product<Math, 1, 1>(a, b, query_width, [&](int i, int j, float value) {
          out[(head * rows + row + i) * layout.narrow_stride + j] = value;
        });
      });
    }
    const int64_t head_stride = static_cast<int64_t>(rows) * layout.narrow_stride;
    q = {shared + layout.narrow[0], layout.narrow_stride, head_stride};
    k = {shared + layout.narrow[1], layout.narrow_stride, head_stride};
    __syncthreads();
  }

  float* const p = shared + layout.p;
  float* const dropped = shared + layout.dropped;
  float* const dp = shared + layout.dp;
  const int stride = layout.slot_stride;
  const SlotMask mask(given.dropout);
  const float scale = 1.0f / sqrtf(static_cast<float>(given.e));
  slot_softmax(share, q, k, given.e, scale, mask, p, dropped, stride);
  __syncthreads();

  HeadRows dmixed{given.dnormed + value_base, value_stride, value_width};
  if (with_norm) {
    mix_values<Math, false>(share, dropped, stride, v, value_width, shared + layout.mixed, layout.mixed_stride);
    __syncthreads();
    norm_backward<T>(given, rows, first_row, shared + layout.mixed, layout.mixed_stride);
    __syncthreads();
    dmixed = {shared + layout.mixed, layout.mixed_stride, value_width};
  } else {
    mix_values<Math, false>(share, dropped, stride, v, value_width, given.normed + value_base, value_stride);
  }

  // dP' = dO Vᵀ
  for_each_sequence_tile(share, given.d_p, 32, [&](int head, int row, int slot, int column) {
    const Along<float, false> a{{dmixed.at(row, head), 0, dmixed.stride, given.d_p}, slot, given.d_p, value_width};
    const Along<float, false> b{{v.at(row, head), 0, v.stride, given.d_p}, column, given.d_p, value_width};
    tile_product<Math, 1, 4>(a, b, value_width,
                             [&](int i, int j, float value) { dp[(head * rows + row + i) * stride + j] = value; });
  });
  __syncthreads();
  softmax_backward(share, p, dropped, dp, stride, mask.scale, scale);
  __syncthreads();

  // dV = P'ᵀ dO
  for_each_sequence_tile(share, value_width, 32, [&](int head, int row, int slot, int column) {
    const Across<float, false> a{
        {dropped + (head * rows + row) * stride, 0, stride, given.d_p}, slot, given.d_p, given.d_p};
    const Across<float, false> b{{dmixed.at(row, head), 0, dmixed.stride, given.d_p}, column, value_width, given.d_p};
    tile_product<Math, 1, 4>(a, b, given.d_p, [&](int i, int j, float value) {
      given.dv[value_base + static_cast<int64_t>(row + i) * value_stride + head * value_width + j] = value;
    });
  });

  // Of the logits: dQ = dS K, dK = dSᵀ Q, behind R where there is one.
  const auto store_query = [&](int head, int row, int j, float value) {
    const int64_t at = query_base + static_cast<int64_t>(row) * query_stride + head * query_width + j;
    given.dq[at] = given.dcompressed == nullptr ? value : value + given.dcompressed[at];
  };
  const auto store_key = [&](int head, int row, int j, float value) {
    given.dk[query_base + static_cast<int64_t>(row) * query_stride + head * query_width + j] = value;
  };
  const auto narrow_at = [&](int head, int row, int j) {
    return (first_row + row) * (given.heads * given.e) + (share.first_head + head) * given.e + j;
  };
  for_each_sequence_tile(share, given.e, 8, [&](int head, int row, int slot, int column) {
    const float* const ds = dp + (head * rows + row) * stride;
    const Along<float, false> of_queries{{ds, 0, stride, given.d_p}, slot, given.d_p, given.d_p};
    const Across<float, false> keys{{k.at(row, head), 0, k.stride, given.d_p}, column, given.e, given.d_p};
    tile_product<Math, 1, 1>(of_queries, keys, given.d_p, [&](int i, int j, float value) {
      if (with_width) {
        shared[layout.dnarrow[0] + (head * rows + row + i) * layout.narrow_stride + j] = value;
        given.dq_narrow[narrow_at(head, row + i, j)] = value;
      } else {
        store_query(head, row + i, j, value);
      }
    });
    const Across<float, false> of_keys{{ds, 0, stride, given.d_p}, slot, given.d_p, given.d_p};
    const Across<float, false> queries{{q.at(row, head), 0, q.stride, given.d_p}, column, given.e, given.d_p};
    tile_product<Math, 1, 1>(of_keys, queries, given.d_p, [&](int i, int j, float value) {
      if (with_width) {
        shared[layout.dnarrow[1] + (head * rows + row + i) * layout.narrow_stride + j] = value;
        given.dk_narrow[narrow_at(head, row + i, j)] = value;
      } else {
        store_key(head, row + i, j, value);
      }
    });
  });
  if (!with_width) {
    return;
  }
  __syncthreads();
  for (int keys = 0; keys < 2; ++keys) {
    const float* const from = shared + (keys ? layout.dnarrow[1] : layout.dnarrow[0]);
    for_each_sequence_tile(share, query_width, 32, [&](int head, int row, int slot, int column) {
      const Along<float, false> a{
          {from + (head * rows + row) * layout.narrow_stride, 0, layout.narrow_stride, given.d_p},
          slot,
          given.d_p,
          given.e};
      const Along<T, false> b{
          {width + static_cast<int64_t>(share.first_head + head) * query_width * given.e, 0, given.e, query_width},
          column,
          query_width,
          given.e};
      tile_product<Math, 1, 4>(a, b, given.e, [&](int i, int j, float value) {
        if (keys) {
          store_key(head, row + i, j, value);
        } else {
          store_query(head, row + i, j, value);
        }
      });
    });
  }
}

template <class T, class Math>
cudaError_t launch(const CoreAttendBackwardArguments& given, const CoreDevice& device, cudaStream_t stream) {
  const bool with_width = given.width != nullptr;
  const bool with_norm = given.norm_weight != nullptr;
  // A LayerNorm joins the heads in one block.
  const int block_heads = with_norm ? given.heads : 1;
  const int64_t work = int64_t{given.batch} * (given.heads / block_heads);
  const int64_t one =
      core_attend_backward_bytes(given.d_p, given.heads, given.value_width, given.e, with_width, with_norm);
  const auto group =
      static_cast<int>(std::max<int64_t>(1, std::min({(work + device.multiprocessors - 1) / device.multiprocessors,
                                                      int64_t{kMostRows / given.d_p}, device.shared_bytes / one})));
  const Layout layout(group * given.d_p, block_heads, given.d_p, given.value_width, given.e, with_width, with_norm);
  const auto bytes = static_cast<size_t>(layout.floats) * sizeof(float);
  const auto kernel = core_attend_backward_kernel<T, Math>;
  if (const auto error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      error != cudaSuccess) {
    return error;
  }
  const auto blocks = static_cast<unsigned>((given.batch + group - 1) / group * (given.heads / block_heads));
  kernel<<<blocks, kThreads, bytes, stream>>>(given, group, block_heads);
  return cudaGetLastError();
}

}  // namespace

int64_t core_attend_backward_bytes(int d_p, int heads, int value_width, int e, bool with_width, bool with_norm) {
  return Layout(d_p, with_norm ? heads : 1, d_p, value_width, e, with_width, with_norm).floats *
         static_cast<int64_t>(sizeof(float));
}

cudaError_t core_attend_backward(const CoreAttendBackwardArguments& given, const CoreDevice& device,
                                 cudaStream_t stream) {
  switch (given.element) {
    case Element::float16:
      return launch<__half, TensorCores>(given, device, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16, TensorCores>(given, device, stream);
    case Element::float32:
      return given.tf32 ? launch<float, TensorCores>(given, device, stream)
                        : launch<float, FusedMultiplyAdd>(given, device, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
