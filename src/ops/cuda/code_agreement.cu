#include <cuda_bf16.h>

#include "ops/cuda/code_agreement.h"

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kKeys = 2 * kThreads;  // two keys a thread, in the halves of a word
constexpr int kQueries = 16;
constexpr int kHashes = 64;  // codes of the queries in shared memory at once
constexpr int64_t kMostBlocks = 65535;

/// A block counts for kQueries queries and kKeys keys of a group at a time. Words hold two 16-bit codes or two counts.
template <class Number>
__global__ void __launch_bounds__(kThreads)
    code_agreement_kernel(Number* counts, const int16_t* code_q, const int16_t* code_k, int64_t groups, int64_t n,
                          int64_t m, int64_t hashes) {
  __shared__ uint32_t wanted[kHashes][kQueries];
  const int64_t low = static_cast<int64_t>(blockIdx.x) * kKeys + threadIdx.x, high = low + kThreads;
  const int64_t tiles = (n + kQueries - 1) / kQueries;
  for (int64_t tile = blockIdx.y; tile < groups * tiles; tile += gridDim.y) {
    const int64_t group = tile / tiles, first_query = tile % tiles * kQueries;
    uint32_t sums[kQueries] = {};
    for (int64_t first = 0; first < hashes; first += kHashes) {
      const int count = static_cast<int>(hashes - first < kHashes ? hashes - first : kHashes);
      __syncthreads();
      for (int i = threadIdx.x; i < count * kQueries; i += kThreads) {
        const int64_t query = first_query + i / count;
        const auto code =
            query < n ? static_cast<uint16_t>(code_q[(group * n + query) * hashes + first + i % count]) : uint16_t{0};
        wanted[i % count][i / count] = code * 0x10001u;
      }
      __syncthreads();
      const int16_t* keys = code_k + (group * hashes + first) * m;
      for (int h = 0; h < count; ++h) {
        const uint32_t lower = low < m ? static_cast<uint16_t>(keys[h * m + low]) : 0u;
        const uint32_t upper = high < m ? static_cast<uint16_t>(keys[h * m + high]) : 0u;
        const uint32_t found = lower | upper << 16;
#pragma unroll
        for (int query = 0; query < kQueries; ++query) {
          sums[query] += __vseteq2(found, wanted[h][query]);
        }
      }
    }
#pragma unroll
    for (int query = 0; query < kQueries; ++query) {
      if (first_query + query < n) {
        Number* row = counts + (group * n + first_query + query) * m;
        if (low < m) {
          row[low] = static_cast<Number>(static_cast<float>(sums[query] & 0xffffu));
        }
        if (high < m) {
          row[high] = static_cast<Number>(static_cast<float>(sums[query] >> 16));
        }
      }
    }
  }
}

template <class Number>
cudaError_t launch(void* counts, const int16_t* code_q, const int16_t* code_k, int64_t groups, int64_t n, int64_t m,
                   int64_t hashes, cudaStream_t stream) {
  if (groups == 0 || n == 0 || m == 0) {
    return cudaSuccess;
  }
  const int64_t tiles = groups * ((n + kQueries - 1) / kQueries);
  const dim3 grid(static_cast<unsigned>((m + kKeys - 1) / kKeys),
                  static_cast<unsigned>(tiles < kMostBlocks ? tiles : kMostBlocks));
  code_agreement_kernel<<<grid, kThreads, 0, stream>>>(static_cast<Number*>(counts), code_q, code_k, groups, n, m,
                                                       hashes);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_code_agreement(void* counts, CountType type, const int16_t* code_q, const int16_t* code_k,
                                  int64_t groups, int64_t n, int64_t m, int64_t hashes, cudaStream_t stream) {
  switch (type) {
    case CountType::bfloat16:
      return launch<__nv_bfloat16>(counts, code_q, code_k, groups, n, m, hashes, stream);
    case CountType::float32:
      return launch<float>(counts, code_q, code_k, groups, n, m, hashes, stream);
    case CountType::float64:
      return launch<double>(counts, code_q, code_k, groups, n, m, hashes, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
