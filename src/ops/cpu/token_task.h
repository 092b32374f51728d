#pragma once

#include <optional>

#include "ops/cpu/compress_tokens.h"
#include "ops/cpu/restore_tokens.h"

namespace dba::ops::cpu {

/// The pass that gives the tokens their gradient, through either or both operators.
template <class T>
struct TokenProblem {
  const Kernels<T>& kernels;
  const TokenMatrix<T>&x, &dx;
  std::optional<CompressTokens<T>> compress;
  std::optional<RestoreTokens<T>> restore;

  void put(reference::TokenGradients& result) {
    Totals<T> totals(kernels);
    if (compress) {
      compress->merge(totals);
    }
    if (restore) {
      restore->merge(totals);
    }
    totals.make();
    if (compress) {
      compress->put(result);
    }
    if (restore) {
      restore->put(result);
    }
  }
};

/// One thread's part of it.
template <class T>
class TokenTask {
 public:
  explicit TokenTask(TokenProblem<T>& problem)
      : problem_(problem),
        tile_(scratch_.panels(problem.kernels, kTile, problem.x.width())),
        gradient_(scratch_.panels(problem.kernels, kTile, problem.x.width())) {
    if (problem.compress) {
      compress_.emplace(*problem.compress, scratch_);
    }
    if (problem.restore) {
      restore_.emplace(*problem.restore, scratch_);
    }
  }

  /// Restore's weights are found in `kept`, or computed where that is null.
  void take_from(KeptWeights<T>* kept) {
    restore_->take_from(kept);
  }
  void take_from(KeptTiles<T> left) {
    restore_->take_from(left);
  }
  /// `given` counts where compress takes part. The segment is the plan's own.
  void run(const Segment& segment, int64_t unit, const SummaryGradient<T>& given) {
    const auto& k = problem_.kernels;
    if (compress_) {
      compress_->begin(segment, unit, given);
    }
    const auto tile = segment.tile();
    for (int64_t first = 0; first < segment.tokens; first += tile) {
      const auto count = std::min(tile, segment.tokens - first);
      const auto row = segment.first_row + first;
      const auto target = problem_.dx.target(k, row, gradient_);
      const auto x = problem_.x.factor(k, row, count, tile_);
      if (compress_) {
        compress_->add(first, count, x, target, /*add=*/false, problem_.x.ahead(row + count, tile),
                       problem_.dx.ahead(row, count), restore_ && first == 0 ? restore_->needs(segment) : Ahead{});
      }
      if (restore_) {
        if (first == 0) {
          restore_->begin(segment, unit);
        }
        restore_->add(first, count, x, target, /*add=*/compress_.has_value());
      }
      problem_.dx.store(k, row, count, fixed(target));
    }
    if (compress_) {
      compress_->finish();
    }
    if (restore_) {
      restore_->finish();
    }
  }

 private:
  TokenProblem<T>& problem_;
  Scratch scratch_;
  Panels<T> tile_, gradient_;
  std::optional<typename CompressTokens<T>::Task> compress_;
  std::optional<typename RestoreTokens<T>::Task> restore_;
};

/// Numbers that a unit of this pass keeps until all are through.
inline int64_t sums_of_tokens(const ScoreRows& rows, int64_t width) {
  return ((rows.each.defined() ? rows.each.size(1) : 0) + (rows.shared.defined() ? rows.shared.size(0) : 0)) * width;
}

}  // namespace dba::ops::cpu
