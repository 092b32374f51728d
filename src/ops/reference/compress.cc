#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "ops/checks.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"

namespace dba::ops::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// (P, R) log-sum-exp of pieces → (B, R) of sequences; −inf for a sequence without tokens.
at::Tensor merge_pieces(const at::Tensor& piece_lse, const at::Tensor& sequence, int64_t batch) {
  const auto rows = piece_lse.size(1);
  const auto index = sequence.unsqueeze(1).expand({-1, rows});
  const auto largest = at::full({batch, rows}, kMinusInfinity, piece_lse.options())
                           .scatter_reduce(0, index, piece_lse, "amax", /*include_self=*/true);
  const auto shift = largest.masked_fill(largest.eq(kMinusInfinity), 0);
  const auto sum = at::zeros({batch, rows}, piece_lse.options())
                       .index_add_(0, sequence, (piece_lse - shift.index_select(0, sequence)).exp_());
  return shift + sum.log();
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

  // First the log-sum-exp of every row, then the weights: with a single group its scores are kept in between.
  at::Tensor kept_scores;
  std::vector<at::Tensor> piece_lse{at::zeros({0, softmax_rows}, options)};
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    kept_scores = scorer.scores(tile);
    const auto masked = kept_scores.narrow(2, 0, softmax_rows).masked_fill(tile.valid.logical_not(), kMinusInfinity);
    piece_lse.push_back(masked.logsumexp(1));
  }
  Summary summary;
  summary.lse = at::cat({merge_pieces(at::cat(piece_lse), pieces.sequence(), batch),
                         lengths.to(type).log().unsqueeze(1).expand({batch, rows.linear})},
                        1);
  summary.c = at::zeros({batch, count, x.size(1)}, options);
  summary.r = at::zeros({batch, count}, options);
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    const auto scores = pieces.groups() == 1 ? kept_scores : scorer.scores(tile);
    auto weights = compress_weights(tile, scores, summary.lse, lengths, rows.linear);
    if (dropout.p > 0) {
      weights = weights * tile_mask(dropout, kSiteCompress, tile, count);
    }
    summary.r.index_add_(0, tile.sequence, weights.sum(1));
    summary.c.index_add_(0, tile.sequence, at::bmm(weights.transpose(1, 2), tile.x));
  }
  return summary;
}

}  // namespace dba::ops::reference
