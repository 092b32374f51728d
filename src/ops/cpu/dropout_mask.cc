#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/dropout_mask.h"
#include "ops/philox.h"

namespace dba::ops {

at::Tensor dropout_mask_cpu(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                            const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype) {
  const auto pieces = sequence.size(0);
  auto mask = at::empty({pieces, tokens, slots}, sequence.options().dtype(dtype));
  const auto key = rng.contiguous();
  const auto seed = static_cast<uint64_t>(key.const_data_ptr<int64_t>()[0]);
  const auto offset = static_cast<uint64_t>(key.const_data_ptr<int64_t>()[1]);
  const auto threshold = philox::threshold(p);
  const auto sequences = sequence.contiguous();
  const auto first_tokens = first_token.contiguous();
  const auto* const sequence_of = sequences.const_data_ptr<int64_t>();
  const auto* const first_of = first_tokens.const_data_ptr<int64_t>();

  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "dropout_mask", [&] {
    const auto scale = static_cast<scalar_t>(1.0 / (1.0 - p));
    auto* const out = mask.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, pieces, 1, [&](int64_t from, int64_t to) {
      for (int64_t piece = from; piece < to; ++piece) {
        const auto end = first_of[piece] + tokens;
        for (auto quad = first_of[piece] / 4; quad * 4 < end; ++quad) {
          for (int64_t slot = 0; slot < slots; ++slot) {
            const auto words =
                philox::token_quad(seed, offset, static_cast<uint32_t>(site), static_cast<uint32_t>(sequence_of[piece]),
                                   static_cast<uint32_t>(slot), static_cast<uint32_t>(quad));
            for (int64_t lane = 0; lane < 4; ++lane) {
              const auto t = quad * 4 + lane - first_of[piece];
              if (t >= 0 && t < tokens) {
                out[(piece * tokens + t) * slots + slot] = words.word[lane] >= threshold ? scale : scalar_t(0);
              }
            }
          }
        }
      }
    });
  });
  return mask;
}

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("dropout_mask", dropout_mask_cpu);
}

}  // namespace dba::ops
