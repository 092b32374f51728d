#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/core_attend.cuh"
#include "ops/cuda/kernel_row.cuh"

/// O = P' V and the LayerNorm over the heads of a slot, one warp for a slot of a sequence and all its heads: the rows
/// of O are independent of each other, and a sequence's keys and values stay in the cache for its other slots.
namespace dba::ops::cuda {
namespace {

constexpr int kMostWarps = 4;

__host__ __device__ inline int floats_of_warp(int d_p, int heads, int value_width) {
  return round_up(heads * d_p, 4) + round_up(heads * value_width, 4);
}

/// P' of slot `slot` of a sequence, key by key, head after head.
__device__ inline void attend(const CoreAttendArguments& given, int sequence, int slot, float* p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int d_p = given.d_p;
  const int64_t stride = static_cast<int64_t>(given.heads) * given.e;
  const float* const query = given.q + (static_cast<int64_t>(sequence) * d_p + slot) * stride;
  const float* const keys = given.k + static_cast<int64_t>(sequence) * d_p * stride;
  const float scale = 1.0f / sqrtf(static_cast<float>(given.e));
#pragma unroll 1
  for (int unit = lane; unit < given.heads * d_p; unit += 32) {
    const Division place(unit, d_p);  // head and key
    const float* const left = query + place.quotient * given.e;
    const float* const right = keys + place.remainder * stride + place.quotient * given.e;
    p[unit] = sum_of_products(
                  left, [&](int x) { return right[x]; }, given.e) *
              scale;
  }
  __syncwarp();
  const SlotMask mask(given.dropout);
  const int group = lanes_of_row(d_p);
  const int of_group = lane & (group - 1);
#pragma unroll 1
  for (int first = 0; first < given.heads; first += 32 / group) {
    const int head = first + lane / group;
    const int end = head < given.heads ? d_p : 0;
    float* const row = p + head * d_p;
    float largest = -INFINITY;
#pragma unroll 1
    for (int key = of_group; key < end; key += group) {
      largest = fmaxf(largest, row[key]);
    }
    largest = group_max(largest, group);
    float sum = 0.0f;
#pragma unroll 1
    for (int key = of_group; key < end; key += group) {
      row[key] = expf(row[key] - largest);
      sum += row[key];
    }
    const float inverse = mask.scale / group_sum(sum, group);
#pragma unroll 1
    for (int key = of_group; key < end; key += group) {
      row[key] = mask.kept(sequence, head * d_p + slot, key) ? row[key] * inverse : 0.0f;
    }
  }
  __syncwarp();
}

/// O of that slot, kEach columns a lane at a time; put(column, value).
template <int kEach, class Put>
__device__ inline void mix(const CoreAttendArguments& given, int sequence, const float* p, const Put& put) {
  struct alignas(4 * kEach) Columns {
    float value[kEach];
  };
  const int width = given.heads * given.value_width;
  const float* const values = given.v + static_cast<int64_t>(sequence) * given.d_p * width;
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x % 32) * kEach; column < width; column += 32 * kEach) {
    const float* const weights = p + Division(column, given.value_width).quotient * given.d_p;
    float sum[kEach] = {};
#pragma unroll 8
    for (int key = 0; key < given.d_p; ++key) {
      const auto value = *reinterpret_cast<const Columns*>(values + static_cast<int64_t>(key) * width + column);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        sum[i] = fmaf(weights[key], value.value[i], sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      put(column + i, sum[i]);
    }
  }
}

/// The LayerNorm of one row `mixed` in shared memory, forward and, where wanted, backward.
template <class T>
__device__ inline void normalise(const CoreAttendArguments& given, int64_t row, const float* mixed) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int width = given.heads * given.value_width;
  const int64_t base = row * width;
  const T* const weights = static_cast<const T*>(given.norm_weight);
  const T* const biases = static_cast<const T*>(given.norm_bias);
  float sum = 0.0f;
#pragma unroll 4
  for (int j = lane; j < width; j += 32) {
    sum += mixed[j];
  }
  const float mean = group_sum(sum, 32) / static_cast<float>(width);
  float squares = 0.0f;
#pragma unroll 4
  for (int j = lane; j < width; j += 32) {
    squares = fmaf(mixed[j] - mean, mixed[j] - mean, squares);
  }
  const float rstd = 1.0f / sqrtf(group_sum(squares, 32) / static_cast<float>(width) + kLayerNormEps);
  float gradients = 0.0f;
  float products = 0.0f;
#pragma unroll 4
  for (int j = lane; j < width; j += 32) {
    const float unit = (mixed[j] - mean) * rstd;
    const float weight = widened(weights[j]);
    given.normed[base + j] = fmaf(unit, weight, widened(biases[j]));
    if (given.dnormed != nullptr) {
      const float gradient = given.dnormed[base + j];
      given.dnorm_products[base + j] = gradient * unit;
      gradients = fmaf(gradient, weight, gradients);
      products = fmaf(gradient * weight, unit, products);
    }
  }
  if (given.dnormed == nullptr) {
    return;
  }
  gradients = group_sum(gradients, 32) / static_cast<float>(width);
  products = group_sum(products, 32) / static_cast<float>(width);
#pragma unroll 4
  for (int j = lane; j < width; j += 32) {
    const float unit = (mixed[j] - mean) * rstd;
    const float weight = widened(weights[j]);
    given.dmixed[base + j] = rstd * (given.dnormed[base + j] * weight - gradients - unit * products);
  }
}

template <class T, int kEach>
__global__ void __launch_bounds__(32 * kMostWarps)
    core_attend_kernel(const __grid_constant__ CoreAttendArguments given) {
  extern __shared__ float4 shared_memory[];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32)) + warp;
  take_turn();
  if (row >= given.batch * given.d_p) {
    return;
  }
  float* const p =
      reinterpret_cast<float*>(shared_memory) + warp * floats_of_warp(given.d_p, given.heads, given.value_width);
  float* const mixed = p + round_up(given.heads * given.d_p, 4);
  const Division place(row, given.d_p);
  const int sequence = place.quotient;
  attend(given, sequence, place.remainder, p);
  if (given.norm_weight == nullptr) {
    float* const out = given.normed + static_cast<int64_t>(row) * given.heads * given.value_width;
    mix<kEach>(given, sequence, p, [&](int column, float value) { out[column] = value; });
    return;
  }
  mix<kEach>(given, sequence, p, [&](int column, float value) { mixed[column] = value; });
  __syncwarp();
  normalise<T>(given, row, mixed);
}

template <class T>
cudaError_t launch(const CoreAttendArguments& given, const CoreDevice& device, cudaStream_t stream) {
  const int64_t of_warp = core_attend_bytes(given.d_p, given.heads, given.value_width);
  const auto warps = static_cast<int>(std::min<int64_t>(kMostWarps, device.shared_bytes / of_warp));
  const auto bytes = static_cast<size_t>(warps * of_warp);
  const bool vectors = given.value_width % 4 == 0 && reinterpret_cast<uintptr_t>(given.v) % 16 == 0;
  const auto kernel = vectors ? core_attend_kernel<T, 4> : core_attend_kernel<T, 1>;
  if (const auto status =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      status != cudaSuccess) {
    return status;
  }
  const auto blocks = static_cast<unsigned>((given.batch * given.d_p + warps - 1) / warps);
  return launch_in_row(kernel, blocks, static_cast<unsigned>(32 * warps), bytes, stream, given);
}

}  // namespace

int64_t core_attend_bytes(int d_p, int heads, int value_width) {
  return floats_of_warp(d_p, heads, value_width) * static_cast<int64_t>(sizeof(float));
}

cudaError_t core_attend(const CoreAttendArguments& given, const CoreDevice& device, cudaStream_t stream) {
  switch (given.element) {
    case Element::float16:
      return launch<__half>(given, device, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16>(given, device, stream);
    case Element::float32:
      return launch<float>(given, device, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
