#pragma once

#include "dba/ops.h"
#include "ops/cpu/scratch.h"
#include "ops/philox.h"

namespace dba::ops::cpu {

/// What the masks of a site are drawn from, but for the sequence. `rng`: seed and offset, see Dropout.
inline MaskKey mask_key(const at::Tensor& rng, double p, int64_t site) {
  const auto numbers = rng.contiguous();
  const auto seed = static_cast<uint64_t>(numbers.const_data_ptr<int64_t>()[0]);
  const auto offset = static_cast<uint64_t>(numbers.const_data_ptr<int64_t>()[1]);
  return {static_cast<uint32_t>(seed),   static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32),
          static_cast<uint32_t>(offset), 0,
          static_cast<uint32_t>(site),   philox::threshold(p)};
}

/// Where a pass draws the dropout masks of its tiles from.
template <class T>
class MaskSource {
 public:
  MaskSource(const Dropout& dropout, Site site) : active_(dropout.p > 0) {
    if (active_) {
      key_ = mask_key(dropout.rng, dropout.p, site);
      kept_ = static_cast<T>(1.0 / (1.0 - dropout.p));
    }
  }

  bool active() const {
    return active_;
  }
  /// Fills `to` and returns it; without dropout returns panels without entries.
  Panels<const T> draw(const Kernels<T>& kernels, Panels<T> to, int64_t sequence, int64_t first_token, int64_t tokens,
                       int64_t first_slot, int64_t slots) const {
    if (!active_) {
      return kNothing<T>;
    }
    auto key = key_;
    key.sequence = static_cast<uint32_t>(sequence);
    kernels.dropout_mask(key, kept_, to, first_token, tokens, first_slot, slots);
    return fixed(to);
  }

 private:
  bool active_;
  MaskKey key_{};
  T kept_ = 1;
};

}  // namespace dba::ops::cpu
