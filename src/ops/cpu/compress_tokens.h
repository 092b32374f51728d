#pragma once

#include <deque>

#include "ops/cpu/kept_steps.h"
#include "ops/cpu/mask_source.h"
#include "ops/cpu/row_groups.h"
#include "ops/cpu/row_sums.h"
#include "ops/cpu/token_matrix.h"
#include "ops/reference/passes.h"

namespace dba::ops::cpu {

/// The summary of one sequence and its gradient: c and dc (L, d), the others (L). Of the gradients null is zero.
template <class T>
struct SummaryGradient {
  const T *c, *r, *lse;
  const T *dc, *dr, *dlse;
};

/// Compress's part of the pass that gives the tokens their gradient.
template <class T>
class CompressTokens {
 public:
  /// `scores`: those that the forward left, if it did.
  CompressTokens(const Kernels<T>& kernels, const reference::CompressBackward& given, const WorkPlan& plan,
                 int64_t batch, KeptTiles<T> scores = {})
      : kernels_(kernels),
        groups_(kernels, given.rows, /*plain=*/true),
        masks_(given.dropout, kSiteCompress),
        width_(given.summary.c.size(2)),
        c_(settled(given.summary.c)),
        r_(settled(given.summary.r)),
        lse_(settled(given.summary.lse)),
        dc_(settled(given.dc)),
        dr_(settled(given.dr)),
        dlse_(settled(given.dlse)),
        kept_(scores) {
    for (const auto& group : groups_.groups()) {
      sums_.emplace_back(kernels, plan, batch, group.count, width_, group.each);
    }
  }

  SummaryGradient<T> of_sequence(int64_t sequence) const {
    const auto slots = groups_.slots();
    const auto rows = sequence * slots;
    return {entry(c_, rows * width_),  entry(r_, rows),  entry(lse_, rows),
            entry(dc_, rows * width_), entry(dr_, rows), entry(dlse_, rows)};
  }
  void merge(Totals<T>& totals) {
    for (auto& sums : sums_) {
      sums.merge(totals);
    }
  }
  /// What was merged, once the totals are made.
  void put(reference::TokenGradients& result) {
    for (size_t i = 0; i < sums_.size(); ++i) {
      const auto& group = groups_.groups()[i];
      (group.each ? result.each : result.shared) = sums_[i].sums();
      if (group.bias.defined()) {
        put_softmax_bias(group, sums_[i].bias());
        (group.each ? result.each_bias : result.shared_bias) = sums_[i].bias();
      }
    }
  }

  /// One thread's work.
  class Task {
   public:
    Task(CompressTokens& of, Scratch& scratch)
        : of_(of),
          weights_(scratch.panels(of.kernels_, kTile, of.groups_.columns())),
          products_(scratch.panels(of.kernels_, kTile, of.groups_.columns())),
          mask_(scratch.panels(of.kernels_, of.masks_.active() ? kTile : 0, of.groups_.columns())),
          dc_scratch_(right_factor_scratch(of.kernels_, of.groups_.slots(), of.width_, scratch)),
          columns_{scratch.zeros<T>(of.groups_.columns()), scratch.zeros<T>(of.groups_.columns()),
                   scratch.zeros<T>(of.groups_.columns()), scratch.zeros<T>(of.groups_.columns())},
          reduction_(scratch.take<T>(of.groups_.slots())) {
      for (size_t i = 0; i < of.sums_.size(); ++i) {
        const auto& group = of.groups_.groups()[i];
        parts_.push_back({PackedRows<T>(of.kernels_, group, /*plain=*/true, scratch),
                          scratch.panels(of.kernels_, of.width_, group.count), of.sums_[i].make(scratch)});
      }
    }

    void begin(const Segment& segment, int64_t unit, const SummaryGradient<T>& given) {
      segment_ = segment;
      with_dc_ = given.dc != nullptr;
      const auto& k = of_.kernels_;
      const auto slots = of_.groups_.slots();
      const auto width = of_.width_;
      if (with_dc_) {
        dc_ = right_factor(k, given.dc, width, slots, width, dc_scratch_);
        k.row_products({given.dc, k.panel, width}, {given.c, k.panel, width}, reduction_, slots, width);
      } else {
        std::fill_n(reduction_, slots, T(0));
      }
      for (size_t i = 0; i < parts_.size(); ++i) {
        auto& part = parts_[i];
        const auto& group = part.rows.group();
        part.rows.prepare(segment.sequence);
        if (with_dc_) {
          k.pack_transposed(given.dc + group.first_slot * width, width, part.dc, group.count, width);
        }
        part.target = of_.sums_[i].target(segment, unit, part.own);
        part.begins = of_.sums_[i].begins(segment, unit);
        if (part.begins) {
          of_.sums_[i].clear_bias(part.target);
        }
        group.put_bias(segment.sequence, columns_.bias);
        for (int64_t j = 0; j < group.count; ++j) {
          const auto slot = group.first_slot + j;
          const auto column = group.first_column + j;
          const T of_r = given.dr == nullptr ? T(0) : given.dr[slot];
          columns_.lse[column] = given.lse[slot];
          columns_.dr[column] = of_r;
          columns_.reduction[column] =
              reduction_[slot] + of_r * given.r[slot] - (given.dlse == nullptr ? T(0) : given.dlse[slot]);
        }
      }
    }

    /// `next`: the tokens to follow, `place`: where dx goes, `later`: what the tile needs besides.
    void add(int64_t first, int64_t tokens, Panels<const T> x, Panels<T> dx, bool add, Ahead next, Ahead place,
             Ahead later) {
      const auto& k = of_.kernels_;
      const auto width = of_.width_;
      const auto& kept = of_.kept_;
      const auto row = segment_.first_row + first;
      auto next_scores = kept.ahead(row + tokens, std::min(tokens, segment_.tokens - first - tokens));
      for (auto& part : parts_) {
        const auto& group = part.rows.group();
        const auto column = group.first_column;
        const auto weights = from_column(k, weights_, column);
        const auto products = from_column(k, products_, column);
        auto scores = weights;
        if (kept.entries != nullptr) {
          scores = from_column(k, kept.tile(row, tokens, k.panel), column);
        } else {
          k.multiply_ahead(x, part.rows.transposed(), scores, tokens, group.count, width, /*add=*/false, next);
          next = {};
        }
        if (with_dc_) {
          k.multiply_ahead(x, fixed(part.dc), products, tokens, group.count, width, /*add=*/false, place);
          place = {};
        } else {
          clear(products, tokens, group.count);
        }
        const auto mask = of_.masks_.draw(k, from_column(k, mask_, column), segment_.sequence,
                                          segment_.first_token + first, tokens, group.first_slot, group.count);
        const RowGradient<T> rows{columns_.bias + column, columns_.lse + column, columns_.dr + column,
                                  columns_.reduction + column, part.target.bias};
        k.compress_gradient(fixed(scores), weights, products, mask, rows, of_.groups_.first_linear(group),
                            static_cast<T>(1.0 / static_cast<double>(segment_.length)), tokens, group.count);
        k.multiply_ahead(fixed(products), part.rows.plain(), dx, tokens, width, group.count, add, later);
        later = {};
        if (with_dc_) {
          k.multiply_ahead(fixed(weights), from_row(dc_, group.first_slot), dx, tokens, width, group.count,
                           /*add=*/true, next);
          next = {};
        }
        k.multiply_transposed_ahead(fixed(products), x, part.target.sums, group.count, width, tokens,
                                    /*add=*/first > 0 || !part.begins, next_scores);
        next_scores = {};
        add = true;
      }
    }

    void finish() {
      for (size_t i = 0; i < parts_.size(); ++i) {
        of_.sums_[i].finish(segment_, parts_[i].target);
      }
    }

   private:
    struct Part {
      PackedRows<T> rows;
      Panels<T> dc;  // (d × count) the gradient of C, transposed
      RowSum<T> own;
      RowSum<T> target{};
      bool begins = true;
    };
    struct Columns {
      T *bias, *lse, *dr, *reduction;
    };

    void clear(Panels<T> panels, int64_t tokens, int64_t count) const {
      for (int64_t j = 0; j < count; j += of_.kernels_.panel) {
        std::fill_n(panels.entries + j / of_.kernels_.panel * panels.stride, tokens * of_.kernels_.panel, T(0));
      }
    }

    CompressTokens& of_;
    Panels<T> weights_, products_, mask_;
    Panels<T> dc_scratch_;
    Panels<const T> dc_{};  // (slots × d)
    Columns columns_;
    T* reduction_;
    std::vector<Part> parts_;
    Segment segment_{};
    bool with_dc_ = false;
  };

 private:
  static at::Tensor settled(const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(c10::CppTypeToScalarType<T>::value).contiguous() : tensor;
  }
  static const T* entry(const at::Tensor& tensor, int64_t index) {
    return tensor.defined() ? tensor.const_data_ptr<T>() + index : nullptr;
  }
  /// A constant added to a softmax row changes its log-sum-exp and nothing else.
  void put_softmax_bias(const RowGroup<T>& group, at::Tensor bias) const {
    const auto count = groups_.first_linear(group);
    auto target = bias.narrow(-1, 0, count);
    if (!dlse_.defined()) {
      target.zero_();
      return;
    }
    const auto of_lse = dlse_.narrow(1, group.first_slot, count);
    target.copy_(group.each ? of_lse : of_lse.sum(0));
  }

  const Kernels<T>& kernels_;
  RowGroups<T> groups_;
  MaskSource<T> masks_;
  int64_t width_;
  at::Tensor c_, r_, lse_, dc_, dr_, dlse_;
  KeptTiles<T> kept_;
  std::deque<RowSums<T>> sums_;  // of each group; never moved
};

}  // namespace dba::ops::cpu
