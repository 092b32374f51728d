#pragma once

#include "ops/cpu/restore_tile.h"
#include "ops/cpu/row_sums.h"
#include "ops/reference/passes.h"

namespace dba::ops::cpu {

/// Restore's part of the pass that gives the tokens their gradient.
template <class T>
class RestoreTokens {
 public:
  RestoreTokens(const Kernels<T>& kernels, const reference::RestoreBackward& given, const WorkPlan& plan, int64_t batch)
      : kernels_(kernels),
        heads_(given.heads),
        linear_(given.linear),
        dy_(given.dy),
        groups_(kernels, given.rows, /*plain=*/true),
        group_(groups_.groups()[0]),
        masks_(given.dropout, kSiteRestore),
        mix_(given.m.to(c10::CppTypeToScalarType<T>::value).contiguous()),
        sums_(kernels, plan, batch, group_.count, group_.rows.size(-1), group_.each) {}

  void merge(Totals<T>& totals) {
    sums_.merge(totals);
  }
  /// What was merged, once the totals are made.
  void put(reference::TokenGradients& result) {
    result.restore_rows = sums_.sums();
    result.restore_bias = group_.bias.defined() ? sums_.bias() : at::Tensor();
  }

  /// One thread's work.
  class Task {
   public:
    Task(RestoreTokens& of, Scratch& scratch)
        : of_(of),
          tile_(of.kernels_, of.group_, of.heads_, of.linear_, of.masks_, /*plain=*/true, scratch),
          dy_(scratch.panels(of.kernels_, kTile, of.dy_.width())),
          mix_(scratch.panels(of.kernels_, of.dy_.width(), of.group_.count)),
          dscores_(scratch.panels(of.kernels_, kTile, of.group_.count)),
          own_(of.sums_.make(scratch)) {}

    void take_from(KeptWeights<T>* kept) {
      tile_.keep_in(kept, /*weighed=*/true);
    }
    void take_from(KeptTiles<T> left) {
      tile_.take_from(left);
    }
    /// What `begin` reads.
    Ahead needs(const Segment& segment) const {
      const auto numbers = tile_.slots() * of_.dy_.width();
      return {of_.mix_.template const_data_ptr<T>() + segment.sequence * numbers,
              numbers * static_cast<int64_t>(sizeof(T))};
    }
    void begin(const Segment& segment, int64_t unit) {
      segment_ = segment;
      target_ = of_.sums_.target(segment, unit, own_);
      begins_ = of_.sums_.begins(segment, unit);
      if (begins_) {
        of_.sums_.clear_bias(target_);
      }
      tile_.prepare(segment.sequence);
      const auto width = of_.dy_.width();
      of_.kernels_.pack_transposed(of_.mix_.template const_data_ptr<T>() + segment.sequence * tile_.slots() * width,
                                   width, mix_, tile_.slots(), width);
    }
    /// What the tile's scores give to its tokens.
    void add(int64_t first, int64_t tokens, Panels<const T> x, Panels<T> dx, bool add) {
      const auto& k = of_.kernels_;
      const auto slots = tile_.slots();
      const auto width = of_.group_.rows.size(-1);
      tile_.weigh(segment_, x, first, tokens, /*dropped=*/false,
                  of_.dy_.ahead(segment_.first_row + first + tokens, kTile));
      const auto dy = of_.dy_.left_factor(k, segment_.first_row + first, tokens, dy_);
      k.multiply(dy, fixed(mix_), dscores_, tokens, slots, of_.dy_.width(), /*add=*/false);
      tile_.differentiate(dscores_, tokens);
      k.multiply(fixed(dscores_), tile_.rows().plain(), dx, tokens, width, slots, add);
      k.multiply_transposed(fixed(dscores_), x, target_.sums, slots, width, tokens, /*add=*/first > 0 || !begins_);
      k.add_rows(fixed(dscores_), target_.bias, tokens, slots);
    }
    void finish() {
      of_.sums_.finish(segment_, target_);
    }

   private:
    RestoreTokens& of_;
    RestoreTile<T> tile_;
    Panels<T> dy_, mix_, dscores_;
    RowSum<T> own_, target_{};
    Segment segment_{};
    bool begins_ = true;
  };

 private:
  const Kernels<T>& kernels_;
  int64_t heads_;
  bool linear_;
  TokenMatrix<T> dy_;
  RowGroups<T> groups_;
  const RowGroup<T>& group_;
  MaskSource<T> masks_;
  at::Tensor mix_;
  RowSums<T> sums_;
};

}  // namespace dba::ops::cpu
