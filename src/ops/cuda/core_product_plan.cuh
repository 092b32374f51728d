#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/core_product_operands.cuh"
#include "ops/cuda/core_products.h"

/// How a list of small products is divided among the thread blocks of a launch. Deep sums are cut into slices, which a
/// second launch adds.
namespace dba::ops::cuda::product_tile {

constexpr int kSliceSteps = 4;  // of a deep sum, for one block
constexpr int kMostSlices = 16;
constexpr int kDeepSteps = 16;
constexpr int kFewTiles = 16;
constexpr int kSumThreads = 256;

/// What the host works out for the blocks of one product.
struct Plan {
  int first_block;
  int a_chunk;  // bytes that one copy instruction may take from A's rows, and from B's
  int b_chunk;
  bool quads;      // four numbers of a row of the result can be written at once
  int steps;       // of a slice
  int slices;      // of the depth
  float* partial;  // (slices, heads, rows, columns), where there is more than one slice
};

struct Work {
  int count;
  Plan plan[kMostProducts];
  Product product[kMostProducts];
};

struct Launch {
  Work work;
  int64_t blocks = 0;
};

__host__ __device__ inline int steps_of(const Product& product) {
  int steps = 0;
  for (int i = 0; i < product.parts; ++i) {
    steps += (product.part[i].depth + kStep - 1) / kStep;
  }
  return steps;
}

/// Bytes of the largest copy that fits every row of the matrix: 16, 4, or that of one number.
inline int chunk(const HeadMatrix& matrix, int rows, int64_t size) {
  const auto fits = [&](int64_t bytes) {
    const auto multiple = [bytes](int64_t number) { return number % bytes == 0; };
    return multiple(reinterpret_cast<int64_t>(matrix.data)) && multiple(matrix.head * size) &&
           (rows == 1 || multiple(matrix.inner * size)) && (rows <= matrix.block || multiple(matrix.outer * size));
  };
  return fits(16) ? 16 : fits(4) ? 4 : static_cast<int>(size);
}

inline int64_t tiles_of(const Product& product) {
  return int64_t{(product.rows + kTile - 1) / kTile} * ((product.columns + kTile - 1) / kTile) * product.heads;
}

/// Only what is finished by its scale alone is divided: sums over rows always, others where they are deep and would
/// leave the GPU nearly empty.
inline int slices_of(const Product& product) {
  const int steps = steps_of(product);
  const bool over_rows = product.orientation == Orientation::across_across;
  const bool by_scale = product.bias == nullptr && product.add == nullptr && product.rounded == nullptr;
  const bool lonely = by_scale && steps >= kDeepSteps && tiles_of(product) <= kFewTiles;
  return over_rows || lonely ? std::clamp((steps + kSliceSteps - 1) / kSliceSteps, 1, kMostSlices) : 1;
}

/// In fours, so that the next product's begin where four can be written at once.
inline int64_t partial_numbers(const Product& product) {
  const int slices = slices_of(product);
  return slices == 1 ? 0 : (int64_t{slices} * product.heads * product.rows * product.columns + 3) / 4 * 4;
}

/// The blocks of a list whose operands have numbers of `a_bytes` and `b_bytes`.
inline Launch plan_products(const ProductList& list, int64_t a_bytes, int64_t b_bytes, float* workspace) {
  // Deep products begin first.
  int order[kMostProducts];
  for (int i = 0; i < list.count; ++i) {
    order[i] = i;
  }
  const auto steps_of_block = [](const Product& product) { return steps_of(product) / slices_of(product); };
  std::stable_sort(order, order + list.count,
                   [&](int i, int j) { return steps_of_block(list.product[i]) > steps_of_block(list.product[j]); });
  Launch launch;
  Work& work = launch.work;
  work.count = 0;
  for (int i = 0; i < list.count; ++i) {
    const Product& product = list.product[order[i]];
    const int slices = slices_of(product);
    const int64_t tiles = tiles_of(product);
    if (tiles == 0) {
      continue;
    }
    const bool a_across = product.orientation == Orientation::across_across;
    const bool b_across = product.orientation != Orientation::along_along;
    Plan& plan = work.plan[work.count];
    plan = {static_cast<int>(launch.blocks),           16,     16,       product.columns % 4 == 0,
            (steps_of(product) + slices - 1) / slices, slices, workspace};
    for (int j = 0; j < product.parts; ++j) {
      const ProductPart& part = product.part[j];
      plan.a_chunk = std::min(plan.a_chunk, chunk(part.a, a_across ? part.depth : product.rows, a_bytes));
      plan.b_chunk =
          std::min(plan.b_chunk, chunk(part.b, b_across ? part.depth : product.columns, a_across ? a_bytes : b_bytes));
    }
    if (slices == 1) {
      const bool plain = product.orientation != Orientation::copy && product.wide_out && product.rounded == nullptr;
      plan.quads = plan.quads && plain && chunk(product.out, product.rows, sizeof(float)) == 16 &&
                   reinterpret_cast<int64_t>(product.add) % 16 == 0;
    }
    workspace += partial_numbers(product);
    work.product[work.count++] = product;
    launch.blocks += tiles * slices;
  }
  return launch;
}

/// The blocks that add the slices of the products that have them, a thread for each number.
inline Launch plan_sums(const Work& work) {
  Launch launch;
  Work& sums = launch.work;
  sums.count = 0;
  for (int i = 0; i < work.count; ++i) {
    if (work.plan[i].slices > 1) {
      const Product& product = work.product[i];
      sums.product[sums.count] = product;
      sums.plan[sums.count] = work.plan[i];
      sums.plan[sums.count++].first_block = static_cast<int>(launch.blocks);
      launch.blocks += (int64_t{product.heads} * product.rows * product.columns + kSumThreads - 1) / kSumThreads;
    }
  }
  return launch;
}

}  // namespace dba::ops::cuda::product_tile
