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
        mix_(forward_.scratch.panels(kernels, core.d_out % kernels.lanes == 0 ? 0 : core.d_p, core.d_out)) {}

  /// Of each of the sequences from `first_sequence` on: c (L, d), r (L), compressed (d_p, H·w), m (H·d_p, d_out).
  void run(const T* c, const T* r, int64_t first_sequence, int64_t sequences, T* compressed, T* m) {
    forward_.run(c, r, first_sequence, sequences);
    forward_.join(forward_.lifted, core_.first.width(), compressed);
    const auto width = core_.d_out;
    const bool in_place = width % k_.lanes == 0;
    for (int64_t head = 0; head < core_.heads; ++head) {
      const auto h = static_cast<size_t>(head);
      for (int64_t i = 0; i < sequences; ++i) {
        T* const rows = m + (i * core_.heads + head) * core_.d_p * width;
        const auto target = in_place ? Panels<T>{rows, k_.panel, width} : mix_;
        k_.multiply(fixed(forward_.of_sequence(forward_.output_heads()[h], i)), core_.out_transposed[h], target,
                    core_.d_p, width, core_.value.width(), /*add=*/false);
        if (!in_place) {
          k_.unpack(fixed(mix_), nullptr, rows, width, core_.d_p, width);
        }
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
