#include "ops/cuda/core_products.h"

#include <algorithm>

#include "ops/cuda/core_product_arithmetic.cuh"
#include "ops/cuda/core_product_plan.cuh"
#include "ops/cuda/core_product_tile.cuh"
#include "ops/cuda/kernel_row.cuh"

namespace dba::ops::cuda {
namespace {

using namespace product_tile;

__device__ inline void store(float* out, float value) {
  *out = value;
}
__device__ inline void store(__half* out, float value) {
  *out = __float2half_rn(value);
}
__device__ inline void store(__nv_bfloat16* out, float value) {
  *out = __float2bfloat16_rn(value);
}

template <class Left, class Right>
struct Shared {
  static constexpr int kRight = kOperandBytes<Left> > kOperandBytes<Right> ? kOperandBytes<Left> : kOperandBytes<Right>;
  static constexpr int kStage = kOperandBytes<Left> + kRight;
  static constexpr int kBytes = std::max(kStages * kStage, kTile* kSumStride * 4);
};

/// What the rows of a tile have in common, found by one thread for each.
struct TileRows {
  int64_t out[kTile];  // where the row begins in product.out
  float sum[kTile];    // r
};

/// Writes the tile; the operand of `copy` and the bias are of type T, as is what is not wide. A thread has one column.
template <class T>
__device__ void write_tile(const Product& product, const TilePlace& at, const float* sums, const TileRows& rows) {
  const int column = at.column + static_cast<int>(threadIdx.x) % kTile;
  if (column >= product.columns) {
    return;
  }
  const bool copy = product.orientation == Orientation::copy;
  const HeadMatrix& from = product.part[0].a;
  const float bias =
      product.bias == nullptr ? 0.0f : widened(static_cast<const T*>(product.bias)[at.head * product.columns + column]);
  void* const out = const_cast<void*>(product.out.data);
  const int count = min(kTile, product.rows - at.row);
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / kTile; row < count; row += kThreads / kTile) {
    float value = 0.0f;
    if (!copy) {
      value = sums[row * kSumStride + column - at.column];
    } else if (from.data != nullptr) {
      value = widened(static_cast<const T*>(from.data)[place(from, at.head, at.row + row) + column]);
    }
    value = fmaf(rows.sum[row], bias, value) * product.scale;
    const int64_t to = rows.out[row] + column;
    if (product.add != nullptr) {
      value += product.add[to];
    }
    if (product.wide_out) {
      static_cast<float*>(out)[to] = value;
    } else {
      store(static_cast<T*>(out) + to, value);
    }
    if (product.rounded != nullptr) {
      store(static_cast<T*>(product.rounded) + to, value);
    }
  }
}

/// The same by fours of floats, for Plan::quads.
template <class T>
__device__ void write_quads(const Product& product, const TilePlace& at, const float* sums, const TileRows& rows) {
  constexpr int kOfRow = kTile / 4;
  const int of_tile = static_cast<int>(threadIdx.x) % kOfRow * 4;
  const int column = at.column + of_tile;
  if (column >= product.columns) {
    return;
  }
  float bias[4] = {};
  if (product.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bias[i] = widened(static_cast<const T*>(product.bias)[at.head * product.columns + column + i]);
    }
  }
  auto* const out = static_cast<float*>(const_cast<void*>(product.out.data));
  const int count = min(kTile, product.rows - at.row);
#pragma unroll 2
  for (int row = static_cast<int>(threadIdx.x) / kOfRow; row < count; row += kThreads / kOfRow) {
    const float r = rows.sum[row];
    const int64_t to = rows.out[row] + column;
    float4 value = *reinterpret_cast<const float4*>(sums + row * kSumStride + of_tile);
    value = make_float4(fmaf(r, bias[0], value.x) * product.scale, fmaf(r, bias[1], value.y) * product.scale,
                        fmaf(r, bias[2], value.z) * product.scale, fmaf(r, bias[3], value.w) * product.scale);
    if (product.add != nullptr) {
      const float4 more = *reinterpret_cast<const float4*>(product.add + to);
      value = make_float4(value.x + more.x, value.y + more.y, value.z + more.z, value.w + more.w);
    }
    *reinterpret_cast<float4*>(out + to) = value;
  }
}

template <class Left, class Right, class Math>
__global__ void __launch_bounds__(kThreads, 3) multiply_kernel(const __grid_constant__ Work work) {
  extern __shared__ __align__(16) unsigned char stages[];
  __shared__ Lines lines;
  __shared__ TileRows rows;
  // Parameters lie behind a small cache whose misses would follow one another: the product's words are fetched at once.
  constexpr int kWords = static_cast<int>(sizeof(Product) / sizeof(uint32_t));
  static_assert(sizeof(Product) % sizeof(uint32_t) == 0 && kWords <= kThreads);
  __shared__ alignas(Product) uint32_t words[kWords];
  const int thread = static_cast<int>(threadIdx.x);
  int index = 0;
  while (index + 1 < work.count && static_cast<int>(blockIdx.x) >= work.plan[index + 1].first_block) {
    ++index;
  }
  const Plan plan = work.plan[index];
  if (thread < kWords) {
    words[thread] = reinterpret_cast<const uint32_t*>(&work.product[index])[thread];
  }
  __syncthreads();
  const Product& product = *reinterpret_cast<const Product*>(words);
  const int row_tiles = (product.rows + kTile - 1) / kTile;
  const int column_tiles = (product.columns + kTile - 1) / kTile;
  const int number = static_cast<int>(blockIdx.x) - plan.first_block;
  const int slice = number / row_tiles / column_tiles / product.heads;
  const int first_step = slice * plan.steps;
  const TilePlace at{number / row_tiles / column_tiles % product.heads, number % row_tiles * kTile,
                     number / row_tiles % column_tiles * kTile, first_step,
                     min(plan.steps, steps_of(product) - first_step)};
  take_turn();
  if (thread >= kThreads - kTile) {
    const int own = thread - (kThreads - kTile);
    const int row = min(at.row + own, product.rows - 1);
    rows.out[own] = place(product.out, at.head, row);
    rows.sum[own] = product.bias == nullptr || product.sums.data == nullptr
                        ? 1.0f
                        : static_cast<const float*>(product.sums.data)[place(product.sums, at.head, row)];
  }
  constexpr int kStage = Shared<Left, Right>::kStage;
  switch (product.orientation) {
    case Orientation::along_along:
      accumulate<Math, Left, false, Right, false>(product, at, plan.a_chunk, plan.b_chunk, stages, kStage, lines);
      break;
    case Orientation::along_across:
      accumulate<Math, Left, false, Right, true>(product, at, plan.a_chunk, plan.b_chunk, stages, kStage, lines);
      break;
    case Orientation::across_across:
      accumulate<Math, Left, true, Left, true>(product, at, plan.a_chunk, plan.b_chunk, stages, kStage, lines);
      break;
    case Orientation::copy:
      __syncthreads();
      break;
  }
  const auto* sums = reinterpret_cast<const float*>(stages);
  if (plan.slices == 1) {
    plan.quads ? write_quads<Right>(product, at, sums, rows) : write_tile<Right>(product, at, sums, rows);
    return;
  }
  float* const partial =
      plan.partial + static_cast<int64_t>(slice * product.heads + at.head) * product.rows * product.columns;
  if (plan.quads) {
    constexpr int kOfRow = kTile / 4;
    const int column = at.column + thread % kOfRow * 4;
    const int count = column < product.columns ? min(kTile, product.rows - at.row) : 0;
#pragma unroll 2
    for (int row = thread / kOfRow; row < count; row += kThreads / kOfRow) {
      *reinterpret_cast<float4*>(partial + static_cast<int64_t>(at.row + row) * product.columns + column) =
          *reinterpret_cast<const float4*>(sums + row * kSumStride + thread % kOfRow * 4);
    }
    return;
  }
  for (int i = thread; i < kTile * kTile; i += kThreads) {
    const int row = at.row + i / kTile, column = at.column + i % kTile;
    if (row < product.rows && column < product.columns) {
      partial[static_cast<int64_t>(row) * product.columns + column] = sums[i / kTile * kSumStride + i % kTile];
    }
  }
}

/// Adds the slices of the products that have them, in order; a thread has one number of the result.
template <class Right>
__global__ void __launch_bounds__(kSumThreads) add_slices_kernel(const __grid_constant__ Work work) {
  int index = 0;
  while (index + 1 < work.count && static_cast<int>(blockIdx.x) >= work.plan[index + 1].first_block) {
    ++index;
  }
  const Product& product = work.product[index];
  const Plan& plan = work.plan[index];
  const int of_product =
      (static_cast<int>(blockIdx.x) - plan.first_block) * kSumThreads + static_cast<int>(threadIdx.x);
  const int count = product.heads * product.rows * product.columns;
  const int column = of_product % product.columns;
  const int row = of_product / product.columns % product.rows;
  const int head = of_product / product.columns / product.rows;
  take_turn();
  if (of_product >= count) {
    return;
  }
  float sum = 0.0f;
#pragma unroll 4
  for (int slice = 0; slice < plan.slices; ++slice) {
    sum += plan.partial[static_cast<int64_t>(slice) * count + of_product];
  }
  const int64_t to = place(product.out, head, row) + column;
  void* const out = const_cast<void*>(product.out.data);
  if (product.wide_out) {
    static_cast<float*>(out)[to] = sum * product.scale;
  } else {
    store(static_cast<Right*>(out) + to, sum * product.scale);
  }
}

template <class Left, class Right, class Math>
cudaError_t launch(const ProductList& list, float* workspace, cudaStream_t stream) {
  const Launch products = plan_products(list, sizeof(Left), sizeof(Right), workspace);
  if (products.blocks == 0) {
    return cudaSuccess;
  }
  const auto kernel = multiply_kernel<Left, Right, Math>;
  constexpr int kBytes = Shared<Left, Right>::kBytes;
  auto status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status == cudaSuccess) {
    status = launch_in_row(kernel, static_cast<unsigned>(products.blocks), kThreads, kBytes, stream, products.work);
  }
  const Launch sums = plan_sums(products.work);
  if (status != cudaSuccess || sums.blocks == 0) {
    return status;
  }
  return launch_in_row(add_slices_kernel<Right>, static_cast<unsigned>(sums.blocks), kSumThreads, 0, stream, sums.work);
}

}  // namespace

size_t multiply_workspace(const ProductList& list) {
  int64_t numbers = 0;
  for (int i = 0; i < list.count; ++i) {
    numbers += partial_numbers(list.product[i]);
  }
  return static_cast<size_t>(numbers) * sizeof(float);
}

cudaError_t multiply(const ProductList& list, void* workspace, cudaStream_t stream) {
  auto* const partials = static_cast<float*>(workspace);
  const bool wide = list.a == Element::float32;
  switch (list.b) {
    case Element::float16:
      return wide ? launch<float, __half, TensorCores<true>>(list, partials, stream)
                  : launch<__half, __half, TensorCores<true>>(list, partials, stream);
    case Element::bfloat16:
      return wide ? launch<float, __nv_bfloat16, TensorCores<true>>(list, partials, stream)
                  : launch<__nv_bfloat16, __nv_bfloat16, TensorCores<true>>(list, partials, stream);
    case Element::float32:
      return list.tf32 ? launch<float, float, TensorCores<false>>(list, partials, stream)
                       : launch<float, float, FusedMultiplyAdd>(list, partials, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
