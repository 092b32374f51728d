#pragma once

#include <cstdint>

#include "ops/cuda/general_tiles.cuh"

namespace dba::ops::cuda::general {

/// Goes through begin, begin + step, … before `end`, and at each through the chunks of the width. load(stage, at,
/// chunk) fills the tiles of a stage; use(stage, at, chunk) finds its own copies arrived and puts a barrier before it
/// reads what others copied. With two stages the next is on its way while one is used. All threads of the block call
/// this; when it returns, the tiles are free.
template <class Load, class Use>
__device__ inline void pipeline(int stages, int64_t begin, int64_t end, int step, int chunks, const Load& load,
                                const Use& use) {
  int64_t loaded_at = begin;
  int loaded_chunk = 0;
  int64_t at = begin;
  int chunk = 0;
#pragma unroll 1
  for (int i = stages == 2 ? -1 : 0; at < end; ++i) {
    const bool loads = loaded_at < end;
    if (loads) {
      load((i + 1) & (stages - 1), loaded_at, loaded_chunk);
      commit_copies();
      loaded_chunk = loaded_chunk + 1 < chunks ? loaded_chunk + 1 : 0;
      loaded_at += loaded_chunk == 0 ? step : 0;
    }
    if (i < 0) {
      continue;
    }
    if (stages == 2 && loads) {
      await_copies<1>();
    } else {
      await_copies<0>();
    }
    use(i & (stages - 1), at, chunk);
    __syncthreads();
    chunk = chunk + 1 < chunks ? chunk + 1 : 0;
    at += chunk == 0 ? step : 0;
  }
}

}  // namespace dba::ops::cuda::general
