#include "ops/cuda/core_products.h"

#include <algorithm>

#include "ops/cuda/core_product.cuh"

namespace dba::ops::cuda {
namespace {

// A warp makes a tile of 32×32; the four warps of a block divide the depth of a tile among them, or take a tile each.
constexpr int kWarps = 4;
constexpr int kTile = 32;
constexpr int kLongestRun = 256;  // numbers added one after the other

/// What the host works out for the blocks of one product.
struct Plan {
  int first_block;
  int slices;  // of the depth; a power of two up to kWarps
  bool aligned;
};

struct Work {
  int count;
  Plan plan[kMostProducts];
  Product product[kMostProducts];
};

template <class T>
__device__ RowMap<T> rows_of(const HeadMatrix& matrix, int head) {
  const T* data = static_cast<const T*>(matrix.data);
  return {data == nullptr ? data : data + head * matrix.head, matrix.outer, matrix.inner, matrix.block};
}

__device__ inline int64_t place(const HeadMatrix& matrix, int head, int row) {
  return (row / matrix.block) * matrix.outer + (row % matrix.block) * matrix.inner + head * matrix.head;
}

__device__ inline void store(float* out, float value) {
  *out = value;
}
__device__ inline void store(__half* out, float value) {
  *out = __float2half_rn(value);
}
__device__ inline void store(__nv_bfloat16* out, float value) {
  *out = __float2bfloat16_rn(value);
}

template <class T>
__device__ void finish(const Product& product, int head, int row, int column, float value) {
  if (product.bias != nullptr) {
    const float sum = product.sums.data == nullptr
                          ? 1.0f
                          : static_cast<const float*>(product.sums.data)[place(product.sums, head, row)];
    value = fmaf(sum, widened(static_cast<const T*>(product.bias)[head * product.columns + column]), value);
  }
  value *= product.scale;
  const int64_t at = place(product.out, head, row) + column;
  if (product.add != nullptr) {
    value += product.add[at];
  }
  void* const out = const_cast<void*>(product.out.data);
  if (product.wide_out) {
    static_cast<float*>(out)[at] = value;
  } else {
    store(static_cast<T*>(out) + at, value);
  }
}

/// Which tile a warp makes, and which slice of its depth.
struct Share {
  int head, row, column;
  bool real;  // the last block's warps may have none
  int slice, slices;
};

/// A tile of 16·MT × 8·NT: the slices' sums, added in order by the first slice.
template <class Math, int MT, int NT, class T, class A, class B>
__device__ void make_tile(const Product& product, const Share& share, float* exchange) {
  constexpr int kSums = MT * NT * 4;
  float sum[MT][NT][4] = {};
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x / 32;
  if (share.real) {
    for (int i = 0; i < product.parts; ++i) {
      const ProductPart& part = product.part[i];
      const int each = (part.depth + share.slices * 32 - 1) / (share.slices * 32) * 32;
      const int k_begin = share.slice * each;
      const int k_end = min(part.depth, k_begin + each);
      if (k_begin < k_end) {
        const A a{rows_of<typename A::Element>(part.a, share.head), share.row, product.rows, part.depth};
        const B b{rows_of<typename B::Element>(part.b, share.head), share.column, product.columns, part.depth};
        // A long sum is a sum of sums, which rounds less.
        for (int k = k_begin; k < k_end; k += kLongestRun) {
          float run[MT][NT][4] = {};
          accumulate<Math>(run, a, b, k, min(k_end, k + kLongestRun));
#pragma unroll
          for (int j = 0; j < kSums; ++j) {
            (&sum[0][0][0])[j] += (&run[0][0][0])[j];
          }
        }
      }
    }
  }
  if (share.slices > 1) {
    float* const flat = &sum[0][0][0];
    if (share.slice > 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        exchange[((warp - 1) * kSums + i) * 32 + lane] = flat[i];
      }
    }
    __syncthreads();
    if (share.slice == 0) {
      for (int other = 1; other < share.slices; ++other) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          flat[i] += exchange[((warp + other - 1) * kSums + i) * 32 + lane];
        }
      }
    }
    __syncthreads();
  }
  if (share.real && share.slice == 0) {
    for_each_entry<A, B>(sum, [&](int i, int j, float value) {
      if (share.row + i < product.rows && share.column + j < product.columns) {
        finish<T>(product, share.head, share.row + i, share.column + j, value);
      }
    });
  }
}

/// The warp's tile at once where vectors can be loaded; else in pieces of 16×8, whose guarded loads need the registers.
template <class Math, class T, template <class, bool> class A, class Left, template <class, bool> class B, class Right>
__device__ void make_tile(const Product& product, const Share& share, bool aligned, float* exchange) {
  if (aligned) {
    make_tile<Math, kTile / 16, kTile / 8, T, A<Left, true>, B<Right, true>>(product, share, exchange);
    return;
  }
#pragma unroll 1
  for (int piece = 0; piece < kTile / 16 * (kTile / 8); ++piece) {
    Share part = share;
    part.row += piece / (kTile / 8) * 16;
    part.column += piece % (kTile / 8) * 8;
    part.real = share.real && part.row < product.rows && part.column < product.columns;
    make_tile<Math, 1, 1, T, A<Left, false>, B<Right, false>>(product, part, exchange);
  }
}

template <class T>
__device__ void copy_tile(const Product& product, const Share& share) {
  const int column = share.column + (threadIdx.x & 31);
  const HeadMatrix& from = product.part[0].a;
  if (!share.real || share.slice > 0 || column >= product.columns) {
    return;
  }
  // Eight loads are under way at once.
  constexpr int kAtOnce = 8;
  const int last = min(share.row + kTile, product.rows);
  for (int first = share.row; first < last; first += kAtOnce) {
    float value[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      value[i] = from.data == nullptr || first + i >= last
                     ? 0.0f
                     : widened(static_cast<const T*>(from.data)[place(from, share.head, first + i) + column]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < last) {
        finish<T>(product, share.head, first + i, column, value[i]);
      }
    }
  }
}

/// Aᵀ b for a single column b: a lane has a row of the result, the slices divide the depth, sums are added in order.
template <class T, class Left>
__device__ void make_column(const Product& product, const Share& share, float* exchange) {
  constexpr int kAtOnce = 16;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x / 32;
  const int row = share.row + lane;
  float sum = 0.0f;
  if (share.real && row < product.rows) {
    for (int i = 0; i < product.parts; ++i) {
      const ProductPart& part = product.part[i];
      const auto a = rows_of<Left>(part.a, share.head);
      const auto b = rows_of<Left>(part.b, share.head);
      const int each = (part.depth + share.slices - 1) / share.slices;
      const int end = min(part.depth, (share.slice + 1) * each);
      for (int k = share.slice * each; k < end; k += kAtOnce) {
        float run = 0.0f;
        float left[kAtOnce], right[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = min(k + j, end - 1);
          left[j] = widened(a.row(at)[row]);
          right[j] = k + j >= end ? 0.0f : b.data == nullptr ? 1.0f : widened(b.row(at)[0]);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          run = fmaf(left[j], right[j], run);
        }
        sum += run;
      }
    }
  }
  if (share.slices > 1) {
    if (share.slice > 0) {
      exchange[(warp - 1) * 32 + lane] = sum;
    }
    __syncthreads();
    if (share.slice == 0) {
      for (int other = 1; other < share.slices; ++other) {
        sum += exchange[(warp + other - 1) * 32 + lane];
      }
    }
    __syncthreads();
  }
  if (share.real && share.slice == 0 && row < product.rows) {
    finish<T>(product, share.head, row, 0, sum);
  }
}

template <class Left, class Right, class Math>
__global__ void __launch_bounds__(kWarps * 32, 2) multiply_kernel(const __grid_constant__ Work work) {
  __shared__ float exchange[(kWarps - 1) * kTile * kTile];
  int index = 0;
  while (index + 1 < work.count && static_cast<int>(blockIdx.x) >= work.plan[index + 1].first_block) {
    ++index;
  }
  const Plan plan = work.plan[index];
  // Parameters lie behind a small cache whose misses would follow one another: the product's words are fetched at once.
  constexpr int kWords = static_cast<int>(sizeof(Product) / sizeof(uint32_t));
  static_assert(sizeof(Product) % sizeof(uint32_t) == 0 && kWords <= kWarps * 32);
  __shared__ alignas(Product) uint32_t words[kWords];
  if (static_cast<int>(threadIdx.x) < kWords) {
    words[threadIdx.x] = reinterpret_cast<const uint32_t*>(&work.product[index])[threadIdx.x];
  }
  __syncthreads();
  const Product& product = *reinterpret_cast<const Product*>(words);
  const int warp = threadIdx.x / 32;
  const int tiles_of_block = kWarps / plan.slices;
  const int row_tiles = (product.rows + kTile - 1) / kTile;
  const int column_tiles = (product.columns + kTile - 1) / kTile;
  // Row tiles run fastest: the warps of a block share the weights' rows.
  const int64_t number = static_cast<int64_t>(blockIdx.x - plan.first_block) * tiles_of_block + warp / plan.slices;
  const bool real = number < static_cast<int64_t>(row_tiles) * column_tiles * product.heads;
  const Share share{real ? static_cast<int>(number / row_tiles / column_tiles) : 0,
                    static_cast<int>(number % row_tiles) * kTile,
                    static_cast<int>(number / row_tiles % column_tiles) * kTile,
                    real,
                    warp % plan.slices,
                    plan.slices};
  switch (product.orientation) {
    case Orientation::along_along:
      make_tile<Math, Right, Along, Left, Along, Right>(product, share, plan.aligned, exchange);
      break;
    case Orientation::along_across:
      make_tile<Math, Right, Along, Left, Across, Right>(product, share, plan.aligned, exchange);
      break;
    case Orientation::across_across:
      if (product.columns == 1) {
        make_column<Right, Left>(product, share, exchange);
      } else {
        make_tile<Math, Right, Across, Left, Across, Left>(product, share, plan.aligned, exchange);
      }
      break;
    case Orientation::copy:
      copy_tile<Right>(product, share);
      break;
  }
}

bool multiple(int64_t number, int64_t unit) {
  return number % unit == 0;
}

/// Whether every row of the matrix begins at a multiple of `numbers` numbers of `size` bytes.
bool aligned_rows(const HeadMatrix& matrix, int64_t numbers, int64_t size) {
  return matrix.data != nullptr && multiple(reinterpret_cast<int64_t>(matrix.data), numbers * size) &&
         multiple(matrix.outer, numbers) && multiple(matrix.inner, numbers) && multiple(matrix.head, numbers);
}

bool is_aligned(const Product& product, int64_t left_size, int64_t right_size) {
  for (int i = 0; i < product.parts; ++i) {
    const ProductPart& part = product.part[i];
    bool fine = false;
    switch (product.orientation) {
      case Orientation::along_along:
        fine = aligned_rows(part.a, 8, left_size) && aligned_rows(part.b, 8, right_size) && multiple(part.depth, 8);
        break;
      case Orientation::along_across:
        fine = aligned_rows(part.a, 8, left_size) && aligned_rows(part.b, kTile / 8, right_size) &&
               multiple(part.depth, 8) && multiple(product.columns, kTile / 8);
        break;
      case Orientation::across_across:
        fine = aligned_rows(part.a, kTile / 8, left_size) && aligned_rows(part.b, kTile / 8, left_size) &&
               multiple(product.rows, kTile / 8) && multiple(product.columns, kTile / 8);
        break;
      case Orientation::copy:
        fine = true;
        break;
    }
    if (!fine) {
      return false;
    }
  }
  return true;
}

template <class Left, class Right, class Math>
cudaError_t launch(const ProductList& list, int multiprocessors, cudaStream_t stream) {
  Work work;
  work.count = 0;
  int64_t blocks = 0;
  int64_t all_tiles = 0;
  const auto tiles_of = [](const Product& product) {
    const int64_t row_tiles = (product.rows + kTile - 1) / kTile;
    const int64_t column_tiles = (product.columns + kTile - 1) / kTile;
    return row_tiles * column_tiles * product.heads;
  };
  for (int i = 0; i < list.count; ++i) {
    all_tiles += tiles_of(list.product[i]);
  }
  for (int i = 0; i < list.count; ++i) {
    const Product& product = list.product[i];
    const int64_t tiles = tiles_of(product);
    if (tiles == 0) {
      continue;
    }
    int depth = 0;
    for (int part = 0; part < product.parts; ++part) {
      depth = std::max(depth, product.part[part].depth);
    }
    // Deep tiles are divided, so that no warp is left alone with one; others until all warps of the device have work.
    int slices = 1;
    while (slices < kWarps && slices * 32 < depth &&
           (slices * 128 < depth || all_tiles * slices < int64_t{16} * multiprocessors)) {
      slices *= 2;
    }
    Plan& plan = work.plan[work.count];
    plan.first_block = static_cast<int>(blocks);
    plan.slices = slices;
    plan.aligned = is_aligned(product, sizeof(Left), sizeof(Right));
    work.product[work.count++] = product;
    const int tiles_of_block = kWarps / slices;
    blocks += (tiles + tiles_of_block - 1) / tiles_of_block;
  }
  if (blocks == 0) {
    return cudaSuccess;
  }
  const auto kernel = multiply_kernel<Left, Right, Math>;
  kernel<<<static_cast<unsigned>(blocks), kWarps * 32, 0, stream>>>(work);
  return cudaGetLastError();
}

}  // namespace

cudaError_t multiply(const ProductList& list, int multiprocessors, cudaStream_t stream) {
  const bool wide = list.a == Element::float32;
  switch (list.b) {
    case Element::float16:
      return wide ? launch<float, __half, TensorCores>(list, multiprocessors, stream)
                  : launch<__half, __half, TensorCores>(list, multiprocessors, stream);
    case Element::bfloat16:
      return wide ? launch<float, __nv_bfloat16, TensorCores>(list, multiprocessors, stream)
                  : launch<__nv_bfloat16, __nv_bfloat16, TensorCores>(list, multiprocessors, stream);
    case Element::float32:
      return list.tf32 ? launch<float, float, TensorCores>(list, multiprocessors, stream)
                       : launch<float, float, FusedMultiplyAdd>(list, multiprocessors, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
