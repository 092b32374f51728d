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

  /// Of each of the sequences from `first_sequence` on: c (L, d), r (L), compressed (d_p, H·w), m (H·d_p, d_out);
  /// projections (d_p, core.projected_width()) where they are to be kept.
  void run(const T* c, const T* r, int64_t first_sequence, int64_t sequences, T* compressed, T* m,
           T* projections = nullptr) {
    forward_.run(c, r, first_sequence, sequences);
    if (projections != nullptr) {
      keep(0, core_.first.width(), forward_.lifted, projections);
      keep(1, core_.key.width(), forward_.keys, projections);
      keep(2, core_.value.width(), forward_.values, projections);
    }
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
  void keep(int64_t group, int64_t width, const std::vector<Panels<T>>& heads, T* projections) const {
    for (int64_t head = 0; head < core_.heads; ++head) {
      k_.unpack(fixed(heads[static_cast<size_t>(head)]), nullptr, projections + core_.projected_column(group, head),
                core_.projected_width(), forward_.rows, width);
    }
  }

  const Kernels<T>& k_;
  const PackedCore<T>& core_;
  CoreForward<T> forward_;
  Panels<T> mix_;
};

}  // namespace dba::ops::cpu
