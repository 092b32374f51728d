#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/dropout_mask.h"
#include "ops/philox.h"

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// One thread per quad of tokens that share a Philox call, and slot. A piece touches at most tokens/4 + 2 quads,
/// whatever token it begins at.
template <class Element>
__global__ void dropout_mask_kernel(Element* mask, const int64_t* rng, uint32_t threshold, Element scale, uint32_t site,
                                    const int64_t* sequence, const int64_t* first_token, int64_t quads, int64_t tokens,
                                    int64_t slots, int64_t total) {
  const auto seed = static_cast<uint64_t>(rng[0]);
  const auto offset = static_cast<uint64_t>(rng[1]);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < total; i += stride) {
    const int64_t slot = i % slots;
    const int64_t quad_in_piece = i / slots % quads;
    const int64_t piece = i / slots / quads;
    const int64_t first = first_token[piece];
    const int64_t quad = first / 4 + quad_in_piece;
    const auto words = philox::token_quad(seed, offset, site, static_cast<uint32_t>(sequence[piece]),
                                          static_cast<uint32_t>(slot), static_cast<uint32_t>(quad));
    for (int lane = 0; lane < 4; ++lane) {
      const int64_t t = quad * 4 + lane - first;
      if (t >= 0 && t < tokens) {
        mask[(piece * tokens + t) * slots + slot] = words.word[lane] >= threshold ? scale : Element(0.0f);
      }
    }
  }
}

template <class Element>
cudaError_t launch(void* mask, const int64_t* rng, double p, int64_t site, const int64_t* sequence,
                   const int64_t* first_token, int64_t pieces, int64_t tokens, int64_t slots, cudaStream_t stream) {
  const int64_t quads = tokens / 4 + 2;
  const int64_t total = pieces * quads * slots;
  if (total == 0) {
    return cudaSuccess;
  }
  const int64_t blocks = (total + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  dropout_mask_kernel<Element><<<grid, kThreads, 0, stream>>>(static_cast<Element*>(mask), rng, philox::threshold(p),
                                                              Element(1.0 / (1.0 - p)), static_cast<uint32_t>(site),
                                                              sequence, first_token, quads, tokens, slots, total);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_dropout_mask(void* mask, MaskType type, const int64_t* rng, double p, int64_t site,
                                const int64_t* sequence, const int64_t* first_token, int64_t pieces, int64_t tokens,
                                int64_t slots, cudaStream_t stream) {
  switch (type) {
    case MaskType::float16:
      return launch<__half>(mask, rng, p, site, sequence, first_token, pieces, tokens, slots, stream);
    case MaskType::bfloat16:
      return launch<__nv_bfloat16>(mask, rng, p, site, sequence, first_token, pieces, tokens, slots, stream);
    case MaskType::float32:
      return launch<float>(mask, rng, p, site, sequence, first_token, pieces, tokens, slots, stream);
    case MaskType::float64:
      return launch<double>(mask, rng, p, site, sequence, first_token, pieces, tokens, slots, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace dba::ops::cuda
