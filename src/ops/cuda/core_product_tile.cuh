#pragma once

#include "ops/cuda/core_product_operands.cuh"

/// One tile of 64×64 of a small product Σ_k A(i, k) B(j, k), by eight warps, operands through shared memory with three
/// stages of 32 k on the way. Such a kernel is latency alone: few blocks, each of which runs through its instructions a
/// few times. So code is kept short, and what threads would all work out by themselves is worked out once and left in
/// shared memory.
namespace dba::ops::cuda::product_tile {

/// Four numbers of a row are read at once, and rows that a warp writes at once begin in different banks.
constexpr int kSumStride = kTile + 8;

/// Where a tile lies: its head, its first row and column of the product; and which steps of the depth are summed.
struct TilePlace {
  int head, row, column;
  int first_step, steps;
};

/// Where lines of this stage's copy and of the next begin, of A and B.
using Lines = const void* [2][2][kTile];

/// Leaves the tile's sums in shared memory, rows kSumStride apart.
template <class Math, class A, bool kAAcross, class B, bool kBAcross>
__device__ void accumulate(const Product& product, const TilePlace& at, int a_chunk, int b_chunk, unsigned char* stages,
                           int stage_bytes, Lines& lines) {
  const auto left = [&](int stage) { return reinterpret_cast<A*>(stages + stage * stage_bytes); };
  const auto right = [&](int stage) { return reinterpret_cast<B*>(stages + stage * stage_bytes + kOperandBytes<A>); };
  int part = 0, k = at.first_step * kStep, copies = 0;
  while (part < product.parts && k >= product.part[part].depth) {
    k -= (product.part[part].depth + kStep - 1) / kStep * kStep;
    ++part;
  }
  const auto copy_of_a = [&] {
    return OperandCopy<A, kAAcross>{product.part[part].a, at.row, product.rows, product.part[part].depth};
  };
  const auto copy_of_b = [&] {
    return OperandCopy<B, kBAcross>{product.part[part].b, at.column, product.columns, product.part[part].depth};
  };
  // Lines along k stay the same throughout a part.
  const auto find_lines = [&] {
    const int thread = static_cast<int>(threadIdx.x);
    if (copies < at.steps) {
      if (thread < (kAAcross ? kStep : kTile) && (kAAcross || k == 0 || copies == 0)) {
        lines[kAAcross ? copies % 2 : part % 2][0][thread] = copy_of_a().line(at.head, k, thread);
      }
      const int of_b = thread - kTile;
      if (of_b >= 0 && of_b < (kBAcross ? kStep : kTile) && (kBAcross || k == 0 || copies == 0)) {
        lines[kBAcross ? copies % 2 : part % 2][1][of_b] = copy_of_b().line(at.head, k, of_b);
      }
    }
  };
  typename OperandCopy<A, kAAcross>::Kept kept_of_a;
  typename OperandCopy<B, kBAcross>::Kept kept_of_b;
  const auto copy_next = [&] {
    if (copies < at.steps) {
      const int stage = copies % kStages;
      const auto* const lines_of_a = lines[kAAcross ? copies % 2 : part % 2][0];
      const auto* const lines_of_b = lines[kBAcross ? copies % 2 : part % 2][1];
      const bool first_of_part = k == 0 || copies == 0;
      if (!kAAcross && a_chunk == 16) {
        if (first_of_part) {
          kept_of_a.find(lines_of_a);
        }
        copy_of_a().stage(left(stage), kept_of_a, k);
      } else {
        copy_of_a().stage(left(stage), lines_of_a, k, a_chunk);
      }
      if (!kBAcross && b_chunk == 16) {
        if (first_of_part) {
          kept_of_b.find(lines_of_b);
        }
        copy_of_b().stage(right(stage), kept_of_b, k);
      } else {
        copy_of_b().stage(right(stage), lines_of_b, k, b_chunk);
      }
      k += kStep;
      if (k >= product.part[part].depth) {
        k = 0;
        ++part;
      }
      ++copies;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum[Math::kSums] = {};
  find_lines();
#pragma unroll 1
  for (int step = 1 - kStages; step < at.steps; ++step) {
    if (step >= 0) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    }
    __syncthreads();
    copy_next();
    find_lines();
    if (step < 0) {
      continue;
    }
    const int stage = step % kStages;
    float run[Math::kSums] = {};  // a sum of sums rounds less
    Math::stage(run, OperandTile<A, kAAcross>{left(stage)}, OperandTile<B, kBAcross>{right(stage)});
#pragma unroll
    for (int i = 0; i < Math::kSums; ++i) {
      sum[i] += run[i];
    }
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  auto* out = reinterpret_cast<float*>(stages);
#pragma unroll
  for (int i = 0; i < Math::kSums; ++i) {
    out[Math::row(i) * kSumStride + Math::column(i)] = sum[i];
  }
  __syncthreads();
}

}  // namespace dba::ops::cuda::product_tile
