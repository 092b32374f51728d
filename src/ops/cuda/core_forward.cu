#include <algorithm>
#include <cmath>

#include "ops/cuda/core_attend.cuh"

namespace dba::ops::cuda {
namespace {

// Twelve warps: with d_p = 16 and w = 64 each has one tile of the three projections.
constexpr int kThreads = 384;
// Rows of slots a block takes at most: enough that the weights are read seldom, few enough that shared memory holds
// the projections of four sequences of 16 slots.
constexpr int kMostRows = 64;

/// The arrays in shared memory, in floats from the start.
struct Layout {
  int query_stride, value_stride, narrow_stride, slot_stride;
  int lifted[3];
  int narrow[2];  // q and k behind R
  int weights;    // P'
  int mixed;      // O, where the queries were
  int floats;

  __host__ __device__ Layout(int rows, int d_p, int query_width, int value_width, int e, bool with_width) {
    query_stride = padded_stride(query_width);
    value_stride = padded_stride(value_width);
    narrow_stride = with_width ? e | 1 : 0;  // odd: neighbouring rows begin in different banks
    slot_stride = padded_stride(d_p);
    const int query_floats = rows * query_stride;
    const int value_floats = rows * value_stride;
    lifted[0] = 0;
    mixed = 0;
    lifted[1] = query_floats > value_floats ? query_floats : value_floats;
    lifted[2] = lifted[1] + query_floats;
    weights = lifted[2] + value_floats;
    narrow[0] = weights + rows * slot_stride;
    narrow[1] = narrow[0] + rows * narrow_stride;
    floats = narrow[1] + rows * narrow_stride;
  }
};

template <class T, class Math, bool Aligned, int MT, int NT>
__global__ void __launch_bounds__(kThreads, 1) core_forward_kernel(const CoreForwardArguments given, int group) {
  extern __shared__ float4 shared_memory[];
  float* shared = reinterpret_cast<float*>(shared_memory);
  const int head = blockIdx.x % given.heads;
  const int first = blockIdx.x / given.heads * group;
  const BlockShare share{first, min(group, given.batch - first), head, 1, given.d_p};
  const int rows = share.rows();
  const int first_row = first * given.d_p;
  const int query_width = given.lifted[0].width;
  const int value_width = given.lifted[2].width;
  const Layout layout(group * given.d_p, given.d_p, query_width, value_width, given.e, given.width != nullptr);
  const int warp = threadIdx.x / 32;
  constexpr int kWarps = kThreads / 32;
  constexpr int kTileRows = 16 * MT;
  constexpr int kTileColumns = 8 * NT;
  const int row_tiles = (rows + kTileRows - 1) / kTileRows;

  // Projections: (W X)_h W_hᵀ + r b_h.
  const int query_tiles = (query_width + kTileColumns - 1) / kTileColumns;
  const int value_tiles = (value_width + kTileColumns - 1) / kTileColumns;
  const int column_tiles = 2 * query_tiles + value_tiles;
  for (int tile = warp; tile < row_tiles * column_tiles; tile += kWarps) {
    const int column_tile = tile % column_tiles;
    const int which = min(column_tile / query_tiles, 2);
    const Lifted& lifted = given.lifted[which];
    const int stride = which == 2 ? layout.value_stride : layout.query_stride;
    float* const out = shared + (which == 0 ? layout.lifted[0] : which == 1 ? layout.lifted[1] : layout.lifted[2]);
    const float* const sums =
        lifted.sums == nullptr ? nullptr : lifted.sums + first * lifted.sums_sequence_stride + head * given.d_p;
    const T* const bias = static_cast<const T*>(lifted.bias) + head * lifted.width;
    const Along<float, Aligned> a{{lifted.source + first * lifted.sequence_stride + head * lifted.head_stride,
                                   lifted.sequence_stride, lifted.row_stride, given.d_p},
                                  tile / column_tiles * kTileRows,
                                  rows,
                                  given.d};
    const Along<T, Aligned> b{
        {static_cast<const T*>(lifted.weight) + static_cast<int64_t>(head) * lifted.width * given.d, 0, given.d,
         lifted.width},
        (column_tile - which * query_tiles) * kTileColumns,
        lifted.width,
        given.d};
    tile_product<Math, MT, NT>(a, b, given.d, [&](int i, int j, float value) {
      if (lifted.bias != nullptr) {
        const float sum = sums == nullptr ? 1.0f : sums[(i / given.d_p) * lifted.sums_sequence_stride + i % given.d_p];
        value = fmaf(sum, widened(bias[j]), value);
      }
      out[i * stride + j] = value;
      if (which == 0) {
        given.compressed[static_cast<int64_t>(first_row + i) * (given.heads * query_width) + head * query_width + j] =
            value;
      }
    });
  }
  __syncthreads();

  // Q_DBA and K_DBA.
  HeadRows q{shared + layout.lifted[0], layout.query_stride, 0};
  HeadRows k{shared + layout.lifted[1], layout.query_stride, 0};
  if (given.width != nullptr) {
    const int narrow_tiles = (given.e + 7) / 8;
    const int tiles = (rows + 15) / 16 * narrow_tiles;
    const T* const width = static_cast<const T*>(given.width) + static_cast<int64_t>(head) * query_width * given.e;
    for (int tile = warp; tile < 2 * tiles; tile += kWarps) {
      const bool keys = tile >= tiles;
      const int index = keys ? tile - tiles : tile;
      float* const out = shared + (keys ? layout.narrow[1] : layout.narrow[0]);
      const Along<float, Aligned> a{
          {keys ? k.data : q.data, 0, layout.query_stride, rows}, index / narrow_tiles * 16, rows, query_width};
      const Across<T, false> b{{width, 0, given.e, query_width}, index % narrow_tiles * 8, given.e, query_width};
      tile_product<Math, 1, 1>(a, b, query_width,
                               [&](int i, int j, float value) { out[i * layout.narrow_stride + j] = value; });
    }
    q = {shared + layout.narrow[0], layout.narrow_stride, 0};
    k = {shared + layout.narrow[1], layout.narrow_stride, 0};
    __syncthreads();
  }

  float* const weights = shared + layout.weights;
  slot_softmax(share, q, k, given.e, 1.0f / sqrtf(static_cast<float>(given.e)), SlotMask(given.dropout), nullptr,
               weights, layout.slot_stride);
  __syncthreads();
  mix_values<Math, Aligned>(share, weights, layout.slot_stride, {shared + layout.lifted[2], layout.value_stride, 0},
                            value_width, shared + layout.mixed, layout.value_stride);
  __syncthreads();

  // M_h = O_h W_O,hᵀ.
  const int out_tiles = (given.out_width + kTileColumns - 1) / kTileColumns;
  for (int tile = warp; tile < row_tiles * out_tiles; tile += kWarps) {
    const Along<float, Aligned> a{
        {shared + layout.mixed, 0, layout.value_stride, rows}, tile / out_tiles * kTileRows, rows, value_width};
    const Along<T, Aligned> b{{static_cast<const T*>(given.out_weight) + head * value_width, 0,
                               static_cast<int64_t>(given.heads) * value_width, given.out_width},
                              tile % out_tiles * kTileColumns,
                              given.out_width,
                              value_width};
    tile_product<Math, MT, NT>(a, b, value_width, [&](int i, int j, float value) {
      const int64_t row =
          (static_cast<int64_t>(first + i / given.d_p) * given.heads + head) * given.d_p + i % given.d_p;
      put(given.m, row * given.out_width + j, value);
    });
  }
}

template <class T, class Math, bool Aligned, int MT, int NT>
cudaError_t launch(const CoreForwardArguments& given, int group, cudaStream_t stream) {
  const Layout layout(group * given.d_p, given.d_p, given.lifted[0].width, given.lifted[2].width, given.e,
                      given.width != nullptr);
  const auto bytes = static_cast<size_t>(layout.floats) * sizeof(float);
  const auto kernel = core_forward_kernel<T, Math, Aligned, MT, NT>;
  if (const auto error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
      error != cudaSuccess) {
    return error;
  }
  const auto blocks = static_cast<unsigned>((given.batch + group - 1) / group * given.heads);
  kernel<<<blocks, kThreads, bytes, stream>>>(given, group);
  return cudaGetLastError();
}

template <class T, class Math>
cudaError_t launch(const CoreForwardArguments& given, int group, cudaStream_t stream) {
  // One row tile and narrow column tiles keep all warps busy on few rows; wide tiles read the operands less often.
  if (!given.aligned) {
    return launch<T, Math, false, 1, 2>(given, group, stream);
  }
  return group * given.d_p <= 16 ? launch<T, Math, true, 1, 2>(given, group, stream)
                                 : launch<T, Math, true, 2, 4>(given, group, stream);
}

}  // namespace

int64_t core_forward_bytes(int d_p, int query_width, int value_width, int e, bool with_width) {
  return Layout(d_p, d_p, query_width, value_width, e, with_width).floats * static_cast<int64_t>(sizeof(float));
}

cudaError_t core_forward(const CoreForwardArguments& given, const CoreDevice& device, cudaStream_t stream) {
  // As many sequences a block as leave every multiprocessor a block, so that weights are read seldom.
  const int64_t work = static_cast<int64_t>(given.batch) * given.heads;
  const int64_t one =
      core_forward_bytes(given.d_p, given.lifted[0].width, given.lifted[2].width, given.e, given.width != nullptr);
  const int64_t group = std::max<int64_t>(1, std::min({(work + device.multiprocessors - 1) / device.multiprocessors,
                                                       int64_t{kMostRows / given.d_p}, device.shared_bytes / one}));
  switch (given.element) {
    case Element::float16:
      return launch<__half, TensorCores>(given, static_cast<int>(group), stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16, TensorCores>(given, static_cast<int>(group), stream);
    case Element::float32:
      return given.tf32 ? launch<float, TensorCores>(given, static_cast<int>(group), stream)
                        : launch<float, FusedMultiplyAdd>(given, static_cast<int>(group), stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
