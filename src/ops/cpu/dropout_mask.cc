#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <type_traits>

#include "ops/cpu/kernels.h"
#include "ops/cpu/mask_source.h"
#include "ops/dropout_mask.h"

namespace dba::ops {
namespace {

/// Tokens of a strip, which is drawn a panel at a time: whole quads that share a Philox call, in the first cache.
constexpr int64_t kStrip = 16;

}  // namespace

at::Tensor dropout_mask_cpu(const at::Tensor& rng, double p, int64_t site, const at::Tensor& sequence,
                            const at::Tensor& first_token, int64_t tokens, int64_t slots, at::ScalarType dtype) {
  check_dropout_mask(rng, p, sequence, first_token);
  const auto pieces = sequence.size(0);
  auto mask = at::empty({pieces, tokens, slots}, sequence.options().dtype(dtype));
  const auto key_of_all = cpu::mask_key(rng, p, site);
  const auto sequences = sequence.contiguous();
  const auto first_tokens = first_token.contiguous();
  const auto* const sequence_of = sequences.const_data_ptr<int64_t>();
  const auto* const first_of = first_tokens.const_data_ptr<int64_t>();
  const auto& kernels = cpu::kernels<float>();
  const auto panel = kernels.panel;
  const int64_t strips = (tokens + 3 + kStrip - 1) / kStrip;  // a piece may begin within a quad
  constexpr int64_t kWorthAThread = 4096;                     // entries

  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "dropout_mask", [&] {
    constexpr bool kAsDrawn = std::is_same_v<scalar_t, float>;
    const auto scale = static_cast<scalar_t>(1.0 / (1.0 - p));
    const auto kept = kAsDrawn ? static_cast<float>(scale) : 1.0f;
    auto* const out = mask.mutable_data_ptr<scalar_t>();
    const auto grain = std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, kStrip * slots));
    at::parallel_for(0, pieces * strips, grain, [&](int64_t from, int64_t to) {
      alignas(64) float tile[kStrip * cpu::kWidestPanel];
      for (auto i = from; i < to; ++i) {
        const auto piece = i / strips;
        const auto first = first_of[piece];
        const auto begin = first / 4 * 4 + i % strips * kStrip;
        const auto rows = std::min(kStrip, first + tokens - begin);
        auto key = key_of_all;
        key.sequence = static_cast<uint32_t>(sequence_of[piece]);
        for (int64_t slot = 0; rows > 0 && slot < slots; slot += panel) {
          const auto width = std::min(panel, slots - slot);
          kernels.dropout_mask(key, kept, {tile, kStrip * panel, panel}, begin, rows, slot, width);
          for (auto row = std::max<int64_t>(0, first - begin); row < rows; ++row) {
            const float* const drawn = tile + row * panel;
            auto* const to_row = out + (piece * tokens + begin + row - first) * slots + slot;
            if constexpr (kAsDrawn) {
              std::copy_n(drawn, width, to_row);
            } else {
              std::transform(drawn, drawn + width, to_row,
                             [&](float weight) { return weight != 0.0f ? scale : scalar_t(0); });
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
