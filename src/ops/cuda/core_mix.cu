#include <algorithm>

#include "ops/cuda/core_attend.cuh"

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 384;
constexpr int kMostRows = 32;

/// Floats of shared memory: P' of all heads, then O of all heads side by side.
struct Layout {
  int slot_stride, mixed_stride;
  int mixed;
  int floats;

  __host__ __device__ Layout(int rows, int heads, int d_p, int value_width) {
    slot_stride = padded_stride(d_p);
    mixed_stride = padded_stride(heads * value_width);
    mixed = heads * rows * slot_stride;
    floats = mixed + rows * mixed_stride;
  }
};

/// blockIdx.x counts groups of sequences, blockIdx.y slices of the output's columns. Every slice makes O and its
/// LayerNorm anew: they cost little beside the product with W_O.
template <class T, class Math, bool Aligned, int MT, int NT>
__global__ void __launch_bounds__(kThreads, 1)
    core_mix_kernel(const CoreMixArguments given, int group, int slice_tiles) {
  extern __shared__ float4 shared_memory[];
  float* shared = reinterpret_cast<float*>(shared_memory);
  const int first = blockIdx.x * group;
  const BlockShare share{first, min(group, given.batch - first), 0, given.heads, given.d_p};
  const int rows = share.rows();
  const int64_t first_row = static_cast<int64_t>(first) * given.d_p;
  const int width = given.heads * given.value_width;
  const int narrow = given.heads * given.e;
  const Layout layout(group * given.d_p, given.heads, given.d_p, given.value_width);
  float* const mixed = shared + layout.mixed;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  constexpr int kWarps = kThreads / 32;

  slot_softmax(share, {given.q + first_row * narrow, narrow, given.e}, {given.k + first_row * narrow, narrow, given.e},
               given.e, 1.0f / sqrtf(static_cast<float>(given.e)), SlotMask(given.dropout), nullptr, shared,
               layout.slot_stride);
  __syncthreads();
  mix_values<Math, Aligned>(share, shared, layout.slot_stride, {given.v + first_row * width, width, given.value_width},
                            given.value_width, mixed, layout.mixed_stride);
  __syncthreads();
  const T* const norm_weight = static_cast<const T*>(given.norm_weight);
  const T* const norm_bias = static_cast<const T*>(given.norm_bias);
  for (int i = warp; i < rows; i += kWarps) {
    float* const row = mixed + i * layout.mixed_stride;
    const Moments moments(row, width);
    for (int j = lane; j < width; j += 32) {
      row[j] = fmaf((row[j] - moments.mean) * moments.rstd, widened(norm_weight[j]), widened(norm_bias[j]));
    }
  }
  __syncthreads();

  constexpr int kTileRows = 16 * MT;
  constexpr int kTileColumns = 8 * NT;
  const int row_tiles = (rows + kTileRows - 1) / kTileRows;
  const int out_tiles = (given.out_width + kTileColumns - 1) / kTileColumns;
  const int first_tile = blockIdx.y * slice_tiles;
  const int tiles = min(slice_tiles, out_tiles - first_tile);
  for (int job = warp; job < given.heads * row_tiles * tiles; job += kWarps) {
    const int head = job / (row_tiles * tiles);
    const Along<float, Aligned> a{{mixed + head * given.value_width, 0, layout.mixed_stride, rows},
                                  job / tiles % row_tiles * kTileRows,
                                  rows,
                                  given.value_width};
    const Along<T, Aligned> b{
        {static_cast<const T*>(given.out_weight) + head * given.value_width, 0, width, given.out_width},
        (first_tile + job % tiles) * kTileColumns,
        given.out_width,
        given.value_width};
    tile_product<Math, MT, NT>(a, b, given.value_width, [&](int i, int j, float value) {
      const int64_t row =
          (static_cast<int64_t>(first + i / given.d_p) * given.heads + head) * given.d_p + i % given.d_p;
      put(given.m, row * given.out_width + j, value);
    });
  }
}

template <class T, class Math, bool Aligned, int MT, int NT>
cudaError_t launch(const CoreMixArguments& given, int group, const CoreDevice& device, cudaStream_t stream) {
  const Layout layout(group * given.d_p, given.heads, given.d_p, given.value_width);
  const auto bytes = static_cast<size_t>(layout.floats) * sizeof(float);
  const auto kernel = core_mix_kernel<T, Math, Aligned, MT, NT>;
  if (const auto error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      error != cudaSuccess) {
    return error;
  }
  // Few sequences: the output's columns are divided so that more multiprocessors take part.
  const int groups = (given.batch + group - 1) / group;
  const int out_tiles = (given.out_width + 8 * NT - 1) / (8 * NT);
  const int slices = std::clamp(device.multiprocessors / groups, 1, std::min(out_tiles, 8));
  const int slice_tiles = (out_tiles + slices - 1) / slices;
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>((out_tiles + slice_tiles - 1) / slice_tiles));
  kernel<<<grid, kThreads, bytes, stream>>>(given, group, slice_tiles);
  return cudaGetLastError();
}

template <class T, class Math>
cudaError_t launch(const CoreMixArguments& given, int group, const CoreDevice& device, cudaStream_t stream) {
  if (!given.aligned) {
    return launch<T, Math, false, 1, 2>(given, group, device, stream);
  }
  return group * given.d_p <= 16 ? launch<T, Math, true, 1, 2>(given, group, device, stream)
                                 : launch<T, Math, true, 2, 4>(given, group, device, stream);
}

}  // namespace

int64_t core_mix_bytes(int d_p, int heads, int value_width) {
  return Layout(d_p, heads, d_p, value_width).floats * static_cast<int64_t>(sizeof(float));
}

cudaError_t core_mix(const CoreMixArguments& given, const CoreDevice& device, cudaStream_t stream) {
  const int64_t one = core_mix_bytes(given.d_p, given.heads, given.value_width);
  const auto group = static_cast<int>(
      std::max<int64_t>(1, std::min({(int64_t{given.batch} + device.multiprocessors - 1) / device.multiprocessors,
                                     int64_t{kMostRows / given.d_p}, device.shared_bytes / one})));
  switch (given.element) {
    case Element::float16:
      return launch<__half, TensorCores>(given, group, device, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16, TensorCores>(given, group, device, stream);
    case Element::float32:
      return given.tf32 ? launch<float, TensorCores>(given, group, device, stream)
                        : launch<float, FusedMultiplyAdd>(given, group, device, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
