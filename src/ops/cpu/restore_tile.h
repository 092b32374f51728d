#pragma once

#include <ATen/core/Tensor.h>

#include "ops/cpu/kept_steps.h"
#include "ops/cpu/mask_source.h"
#include "ops/cpu/row_groups.h"
#include "ops/cpu/token_matrix.h"
#include "ops/cpu/work_plan.h"

namespace dba::ops::cpu {

/// Tiles of restore's weights that the second pass of a backward finds again, where there are no masks to apply and
/// the tokens are few enough.
template <class T>
class KeptWeights {
 public:
  static constexpr int64_t kMostNumbers = int64_t{1} << 18;

  /// Prepares for the tiles of these segments; false: they are too many.
  bool begin(const Kernels<T>& kernels, const Segment* segments, int64_t count, int64_t slots) {
    int64_t tiles = 0;
    for (int64_t i = 0; i < count; ++i) {
      tiles += (segments[i].tokens + kTile - 1) / kTile;
    }
    if (tiles * kTile * slots > kMostNumbers) {
      return false;
    }
    while (static_cast<int64_t>(tiles_.size()) < tiles) {
      tiles_.push_back(scratch_.panels(kernels, kTile, slots));
    }
    rewind();
    return true;
  }
  void rewind() {
    next_ = 0;
  }
  Panels<T> next() {
    return tiles_[next_++];
  }

 private:
  Scratch scratch_;
  std::vector<Panels<T>> tiles_;
  size_t next_ = 0;
};

/// Restore's weights, tile by tile: what its forward and both passes of its backward begin with.
template <class T>
class RestoreTile {
 public:
  RestoreTile(const Kernels<T>& kernels, const RowGroup<T>& group, int64_t heads, bool linear,
              const MaskSource<T>& masks, bool plain, Scratch& scratch)
      : kernels_(kernels),
        rows_(kernels, group, plain, scratch),
        heads_(heads),
        linear_(linear),
        masks_(masks),
        own_(scratch.panels(kernels, kTile, group.count + 1)),
        weights_(own_),
        mask_(scratch.panels(kernels, masks.active() ? kTile : 0, group.count)),
        bias_(scratch.zeros<T>(padded_columns(kernels, group.count))) {}

  void prepare(int64_t sequence) {
    rows_.prepare(sequence);
    rows_.group().put_bias(sequence, bias_);
  }
  /// The tiles to come lie in `kept`, or in the tile's own memory where that is null. Those of a second pass are
  /// weighed already.
  void keep_in(KeptWeights<T>* kept, bool weighed) {
    kept_ = kept;
    weighed_ = weighed;
    weights_ = own_;
  }
  /// The weights that the forward left are taken from there, if it did.
  void take_from(KeptTiles<T> left) {
    left_ = left;
  }
  /// Whether weights are computed, of tokens.
  bool computes() const {
    return left_.entries == nullptr;
  }
  void copy_weights(Panels<T> to, int64_t tokens) const {
    for (int64_t j = 0; j < slots(); j += kernels_.panel) {
      const auto panel = j / kernels_.panel;
      std::copy_n(weights_.entries + panel * weights_.stride, tokens * kernels_.panel, to.entries + panel * to.stride);
    }
  }
  /// The weights of a tile of tokens, times their mask where `dropped`; the mask is drawn either way.
  void weigh(const Segment& segment, Panels<const T> tile, int64_t first, int64_t tokens, bool dropped, Ahead ahead) {
    const auto slots = this->slots();
    if (!computes()) {
      weights_ = left_.tile(segment.first_row + first, tokens, kernels_.panel);
      return;
    }
    if (kept_ != nullptr) {
      weights_ = kept_->next();
      if (weighed_) {
        return;
      }
    }
    kernels_.multiply_ahead(tile, rows_.transposed(), weights_, tokens, slots, rows_.group().rows.size(-1),
                            /*add=*/false, ahead);
    drawn_ = masks_.draw(kernels_, mask_, segment.sequence, segment.first_token + first, tokens, 0, slots);
    kernels_.restore_weights(weights_, dropped ? drawn_ : kNothing<T>, bias_, heads_, linear_, tokens, slots);
  }
  /// A gradient of the weights after dropout becomes that of the scores; `weigh` came first, not dropped.
  void differentiate(Panels<T> gradient, int64_t tokens) const {
    kernels_.restore_gradient(fixed(weights_), drawn_, gradient, heads_, linear_, tokens, slots());
  }
  /// One more column of weights, all 1, for a right factor with a bias as its last row.
  void append_ones(int64_t tokens) {
    T* const column = weights_.entries + slots() / kernels_.panel * weights_.stride + slots() % kernels_.panel;
    for (int64_t t = 0; t < tokens; ++t) {
      column[t * kernels_.panel] = T(1);
    }
  }
  Panels<const T> weights() const {
    return fixed(weights_);
  }
  int64_t slots() const {
    return rows_.group().count;
  }
  const PackedRows<T>& rows() const {
    return rows_;
  }

 private:
  const Kernels<T>& kernels_;
  PackedRows<T> rows_;
  int64_t heads_;
  bool linear_;
  const MaskSource<T>& masks_;
  Panels<T> own_, weights_, mask_;
  KeptTiles<T> left_{};
  KeptWeights<T>* kept_ = nullptr;
  bool weighed_ = false;
  Panels<const T> drawn_ = kNothing<T>;
  T* bias_;
};

}  // namespace dba::ops::cpu
