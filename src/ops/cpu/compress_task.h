#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/kept_steps.h"
#include "ops/cpu/mask_source.h"
#include "ops/cpu/row_groups.h"
#include "ops/cpu/token_matrix.h"
#include "ops/cpu/work_plan.h"

namespace dba::ops::cpu {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

/// What a run of tokens says of every score row. The sums are still to be divided.
template <class T>
struct Partial {
  RunningRows<T> rows;  // one entry per column
  Panels<T> sums;       // (slots × d) Σ weight · token

  Partial(const Kernels<T>& kernels, const RowGroups<T>& groups, int64_t width, Scratch& scratch)
      : rows{scratch.take<T>(groups.columns()), scratch.take<T>(groups.columns()), scratch.take<T>(groups.columns()),
             scratch.take<T>(groups.columns())},
        sums(scratch.panels(kernels, groups.slots(), width)) {}
};

/// Where the summary of one sequence goes: (L, d), (L), (L).
template <class T>
struct SummaryOfSequence {
  T *c, *r, *lse;

  /// The same of the sequence `count` further on.
  SummaryOfSequence after(int64_t count, int64_t slots, int64_t width) const {
    return {c + count * slots * width, r + count * slots, lse + count * slots};
  }
  void put_empty(int64_t slots, int64_t width) const {
    std::fill_n(c, slots * width, T(0));
    std::fill_n(r, slots, T(0));
    std::fill_n(lse, slots, kLowest<T>);
  }
  /// r and lse of a row; returns what its sum of tokens is divided by.
  T put_row(int64_t slot, bool linear, int64_t length, T largest, T sum, T weights) const {
    if (linear) {
      r[slot] = weights;
      lse[slot] = static_cast<T>(std::log(static_cast<double>(length)));
      return T(1);
    }
    const T divisor = sum == T(0) ? T(1) : sum;
    r[slot] = weights / divisor;
    lse[slot] = largest + std::log(sum);
    return divisor;
  }
};

template <class T>
struct CompressProblem {
  const Kernels<T>& kernels;
  const TokenMatrix<T>& x;
  const RowGroups<T>& groups;
  const MaskSource<T>& masks;
  KeptTiles<T> kept{};  ///< where the scores of whole sequences stay, if they do
};

/// One thread's part of compress: its tiles and what it packs for the sequence at hand.
template <class T>
class CompressTask {
 public:
  explicit CompressTask(const CompressProblem<T>& problem)
      : problem_(problem),
        tile_(scratch_.panels(problem.kernels, kTile, problem.x.width())),
        weights_(scratch_.panels(problem.kernels, kTile, problem.groups.columns())),
        mask_(scratch_.panels(problem.kernels, problem.masks.active() ? kTile : 0, problem.groups.columns())),
        bias_(scratch_.zeros<T>(problem.groups.columns())),
        divisors_(scratch_.take<T>(problem.groups.slots())),
        whole_(problem.kernels, problem.groups, problem.x.width(), scratch_) {
    for (const auto& group : problem.groups.groups()) {
      packed_.emplace_back(problem.kernels, group, /*plain=*/false, scratch_);
    }
  }

  /// A whole sequence.
  void run(const Segment& segment, const SummaryOfSequence<T>& to) {
    const auto& k = problem_.kernels;
    const auto slots = problem_.groups.slots(), width = problem_.x.width();
    const bool in_place = width % k.lanes == 0;
    auto whole = whole_;
    if (in_place) {
      whole.sums = {to.c, k.panel, width};
    }
    run(segment, whole);
    for (const auto& group : problem_.groups.groups()) {
      for (int64_t j = 0; j < group.count; ++j) {
        const auto column = group.first_column + j;
        const auto slot = group.first_slot + j;
        divisors_[slot] = to.put_row(slot, slot >= problem_.groups.first_linear(), segment.length,
                                     whole_.rows.largest[column], whole_.rows.sum[column], whole_.rows.r[column]);
      }
    }
    if (in_place) {
      k.divide_rows(whole.sums, divisors_, slots, width);
    } else {
      k.unpack(fixed(whole.sums), divisors_, to.c, width, slots, width);
    }
  }

  /// A part of one.
  void run(const Segment& segment, const Partial<T>& partial) {
    const auto& k = problem_.kernels;
    const auto columns = problem_.groups.columns();
    std::fill_n(partial.rows.largest, columns, kLowest<T>);
    std::fill_n(partial.rows.sum, columns, T(0));
    std::fill_n(partial.rows.r, columns, T(0));
    for (auto& rows : packed_) {
      rows.prepare(segment.sequence);
      rows.group().put_bias(segment.sequence, bias_);
    }
    const auto tile = segment.tile();
    for (int64_t first = 0; first < segment.tokens; first += tile) {
      const auto tokens = std::min(tile, segment.tokens - first);
      const auto x = problem_.x.factor(k, segment.first_row + first, tokens, tile_);
      auto ahead = problem_.x.ahead(segment.first_row + first + tokens, tile);
      for (const auto& rows : packed_) {
        add_tile(segment, rows, first, tokens, x, partial, ahead);
        ahead = {};
      }
    }
  }

 private:
  void add_tile(const Segment& segment, const PackedRows<T>& rows, int64_t first, int64_t tokens, Panels<const T> x,
                const Partial<T>& partial, Ahead ahead) {
    const auto& k = problem_.kernels;
    const auto& group = rows.group();
    const auto width = problem_.x.width();
    const auto column = group.first_column;
    const auto weights = from_column(k, weights_, column);
    const auto& kept = problem_.kept;
    const auto scores = kept.entries == nullptr
                            ? weights
                            : from_column(k, kept.tile(segment.first_row + first, tokens, k.panel), column);
    k.multiply_ahead(x, rows.transposed(), scores, tokens, group.count, width, /*add=*/false, ahead);
    const auto mask = problem_.masks.draw(k, from_column(k, mask_, column), segment.sequence,
                                          segment.first_token + first, tokens, group.first_slot, group.count);
    const auto& of_rows = partial.rows;
    const RunningRows<T> running{of_rows.largest + column, of_rows.sum + column, of_rows.r + column,
                                 of_rows.factor + column};
    const bool rescale =
        k.compress_weights(fixed(scores), weights, mask, bias_ + column, running, problem_.groups.first_linear(group),
                           static_cast<T>(1.0 / static_cast<double>(segment.length)), tokens, group.count);
    const auto sums = from_row(partial.sums, group.first_slot);
    if (rescale && first > 0) {
      k.scale_rows(sums, running.factor, group.count, width);
    }
    k.multiply_transposed(fixed(weights), x, sums, group.count, width, tokens, /*add=*/first > 0);
  }

  const CompressProblem<T>& problem_;
  Scratch scratch_;
  Panels<T> tile_, weights_, mask_;
  T *bias_, *divisors_;
  Partial<T> whole_;
  std::vector<PackedRows<T>> packed_;
};

}  // namespace dba::ops::cpu
