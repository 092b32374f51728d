#pragma once

#include "ops/cpu/core_forward.h"

namespace dba::ops::cpu {

/// One thread's part of core: M and the compressed sequences, stack by stack.
template <class T>
class CoreMix {
 public:
  CoreMix(const Kernels<T>& kernels, const PackedCore<T>& core, const MaskSource<T>& masks, int64_t sequences)
      : k_(kernels),
        core_(core),
        forward_(kernels, core, masks, sequences, /*backward=*/false),
        mix_(forward_.scratch.panels(kernels, forward_.capacity, core.d_out)) {}

  /// Of each of the sequences from `first_sequence` on: c (L, d), r (L), compressed (d_p, H·w), m (H·d_p, d_out).
  void run(const T* c, const T* r, int64_t first_sequence, int64_t sequences, T* compressed, T* m) {
    forward_.run(c, r, first_sequence, sequences);
    forward_.join(forward_.lifted, core_.first.width(), compressed);
    const auto width = core_.d_out;
    for (int64_t head = 0; head < core_.heads; ++head) {
      const auto h = static_cast<size_t>(head);
      k_.multiply(fixed(forward_.output_heads()[h]), core_.out_transposed[h], mix_, forward_.rows, width,
                  core_.value.width(), /*add=*/false);
      for (int64_t i = 0; i < sequences; ++i) {
        k_.unpack(fixed(forward_.of_sequence(mix_, i)), nullptr, m + (i * core_.heads + head) * core_.d_p * width,
                  width, core_.d_p, width);
      }
    }
  }

 private:
  const Kernels<T>& k_;
  const PackedCore<T>& core_;
  CoreForward<T> forward_;
  Panels<T> mix_;
};

}  // namespace dba::ops::cpu
