#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "ops/checks.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"

namespace dba::ops::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// The normaliser of every softmax row, as the largest score and Σ exp(score − largest). Kept apart, because their
/// log-sum-exp is rounded like the scores themselves: at scores of 1e4 in float32 a weight would be off by 1e-4.
struct Normaliser {
  at::Tensor largest;  // (·, R), 0 without tokens
  at::Tensor sum;      // (·, R), 0 without tokens
};

at::Tensor zero_if_minus_infinity(const at::Tensor& values) {
  return values.masked_fill(values.eq(kMinusInfinity), 0);
}

Normaliser of_tile(const Tile& tile, const at::Tensor& scores, int64_t softmax_rows) {
  const auto masked = scores.narrow(2, 0, softmax_rows).masked_fill(tile.valid.logical_not(), kMinusInfinity);
  const auto largest = masked.amax(1);
  return {largest, (masked - zero_if_minus_infinity(largest).unsqueeze(1)).exp_().sum(1)};
}

// (P, R) of pieces → (B, R) of sequences.
Normaliser merge_pieces(const Normaliser& pieces, const at::Tensor& sequence, int64_t batch) {
  const auto rows = pieces.sum.size(1);
  const auto index = sequence.unsqueeze(1).expand({-1, rows});
  const auto largest =
      zero_if_minus_infinity(at::full({batch, rows}, kMinusInfinity, pieces.sum.options())
                                 .scatter_reduce(0, index, pieces.largest, "amax", /*include_self=*/true));
  const auto share = (pieces.largest - largest.index_select(0, sequence)).exp_() * pieces.sum;
  return {largest, at::zeros({batch, rows}, pieces.sum.options()).index_add_(0, sequence, share)};
}

}  // namespace

Summary compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout) {
  const auto type = accumulation_type(x.scalar_type());
  const auto options = x.options().dtype(type);
  const Scorer scorer(rows, type);
  const auto batch = sequences.count();
  const auto count = scorer.rows();
  const auto softmax_rows = count - rows.linear;
  const auto lengths = sequences.lengths().to(at::kLong);
  const Pieces pieces(sequences, std::max(count, x.size(1)));

  // First the normaliser of every row, then the weights: with a single group its scores are kept in between.
  at::Tensor kept_scores;
  std::vector<at::Tensor> largest{at::zeros({0, softmax_rows}, options)};
  std::vector<at::Tensor> sums = largest;
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    kept_scores = scorer.scores(tile);
    const auto normaliser = of_tile(tile, kept_scores, softmax_rows);
    largest.push_back(normaliser.largest);
    sums.push_back(normaliser.sum);
  }
  const auto normaliser = merge_pieces({at::cat(largest), at::cat(sums)}, pieces.sequence(), batch);
  Summary summary;
  summary.lse = at::cat(
      {normaliser.largest + normaliser.sum.log(), lengths.to(type).log().unsqueeze(1).expand({batch, rows.linear})}, 1);
  summary.c = at::zeros({batch, count, x.size(1)}, options);
  summary.r = at::zeros({batch, count}, options);
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    const auto scores = pieces.groups() == 1 ? kept_scores : scorer.scores(tile);
    auto weights = compress_weights(tile, scores, normaliser.largest, lengths, rows.linear);
    if (dropout.p > 0) {
      weights = weights * tile_mask(dropout, kSiteCompress, tile, count);
    }
    summary.r.index_add_(0, tile.sequence, weights.sum(1));
    summary.c.index_add_(0, tile.sequence, at::bmm(weights.transpose(1, 2), tile.x));
  }
  const auto divisor = normaliser.sum.masked_fill(normaliser.sum.eq(0), 1);
  summary.r.narrow(1, 0, softmax_rows).div_(divisor);
  summary.c.narrow(1, 0, softmax_rows).div_(divisor.unsqueeze(2));
  return summary;
}

}  // namespace dba::ops::reference
