#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/reference/passes.h"

namespace dba::ops::reference {
namespace {

/// Compress's part of the token pass.
class CompressTokens {
 public:
  CompressTokens(const CompressBackward& given, const Sequences& sequences, at::ScalarType type)
      : given_(given),
        scorer_(given.rows, type),
        gradient_(scorer_),
        lengths_(sequences.lengths().to(at::kLong)),
        dc_(given.dc.defined() ? given.dc.to(type) : at::zeros_like(given.summary.c)),
        dr_(given.dr.defined() ? given.dr.to(type) : at::zeros_like(given.summary.r)) {
    // What a softmax row's gradient is reduced by: Σ_t W dW, less the gradient of its log-sum-exp.
    reduction_ = (dc_ * given.summary.c).sum(2) + dr_ * given.summary.r;
    if (given.dlse.defined()) {
      reduction_ = reduction_ - given.dlse.to(type);
    }
  }

  at::Tensor token_gradient(const Tile& tile) {
    const auto linear = given_.rows.linear;
    const auto softmax_rows = scorer_.rows() - linear;
    const auto weights = compress_weights(tile, scorer_.scores(tile), given_.summary.lse, lengths_, linear);
    const auto dc = dc_.index_select(0, tile.sequence);
    auto dweights = at::bmm(tile.x, dc.transpose(1, 2)) + dr_.index_select(0, tile.sequence).unsqueeze(1);
    auto dropped = weights;
    if (given_.dropout.p > 0) {
      const auto mask = tile_mask(given_.dropout, kSiteCompress, tile, scorer_.rows());
      dweights = dweights * mask;
      dropped = weights * mask;
    }
    const auto reduction = reduction_.index_select(0, tile.sequence).unsqueeze(1);
    auto dscores = (weights * (dweights - reduction)).narrow(2, 0, softmax_rows);
    if (linear > 0) {
      const auto length = lengths_.index_select(0, tile.sequence).clamp_min(1).to(weights.scalar_type());
      const auto of_linear = (dweights.narrow(2, softmax_rows, linear) / length.view({-1, 1, 1}))
                                 .masked_fill_(tile.valid.logical_not(), 0);
      dscores = at::cat({dscores, of_linear}, 2);
    }
    gradient_.add(tile, dscores);
    return at::bmm(dropped, dc).add_(scorer_.token_gradient(tile, dscores));
  }

  void finish(TokenGradients& result) {
    const auto each_rows = gradient_.each.defined() ? gradient_.each.size(1) : 0;
    // A constant added to a softmax row changes its log-sum-exp and nothing else.
    const auto softmax_rows = scorer_.rows() - given_.rows.linear;
    const auto of_lse = given_.dlse.defined() ? given_.dlse.to(dc_.scalar_type()) : at::zeros_like(dr_);
    if (gradient_.each_bias.defined()) {
      const auto count = std::min(softmax_rows, each_rows);
      gradient_.each_bias.narrow(1, 0, count).copy_(of_lse.narrow(1, 0, count));
      result.each_bias = gradient_.each_bias;
    }
    if (gradient_.shared_bias.defined()) {
      const auto count = std::max<int64_t>(softmax_rows - each_rows, 0);
      gradient_.shared_bias.narrow(0, 0, count).copy_(of_lse.narrow(1, each_rows, count).sum(0));
      result.shared_bias = gradient_.shared_bias;
    }
    result.each = gradient_.each;
    result.shared = gradient_.shared;
  }

  int64_t rows() const {
    return scorer_.rows();
  }

 private:
  const CompressBackward& given_;
  Scorer scorer_;
  ScorerGradient gradient_;
  at::Tensor lengths_;
  at::Tensor dc_, dr_;    // (B, L, d), (B, L)
  at::Tensor reduction_;  // (B, L)
};

/// Restore's part of the token pass.
class RestoreTokens {
 public:
  RestoreTokens(const RestoreBackward& given, at::ScalarType type)
      : given_(given), type_(type), scorer_(given.rows, type), gradient_(scorer_), m_(given.m.to(type)) {}

  at::Tensor token_gradient(const Pieces& pieces, const Tile& tile) {
    const auto weights = restore_weights(scorer_.scores(tile), given_.heads, given_.linear);
    const auto dy = pieces.gather(tile, given_.dy, type_);
    auto dscores = at::bmm(dy, m_.index_select(0, tile.sequence).transpose(1, 2));
    if (given_.dropout.p > 0) {
      dscores = dscores * tile_mask(given_.dropout, kSiteRestore, tile, scorer_.rows());
    }
    if (!given_.linear) {
      const auto per_head = [&](const at::Tensor& t) { return t.view({t.size(0), t.size(1), given_.heads, -1}); };
      const auto sum = per_head(weights * dscores).sum(3, /*keepdim=*/true);
      dscores = weights * (per_head(dscores) - sum).view_as(dscores);
    }
    gradient_.add(tile, dscores);
    return scorer_.token_gradient(tile, dscores);
  }

  void finish(TokenGradients& result) {
    result.restore_rows = gradient_.each.defined() ? gradient_.each : gradient_.shared;
    result.restore_bias = gradient_.each_bias.defined() ? gradient_.each_bias : gradient_.shared_bias;
  }

  int64_t rows() const {
    return scorer_.rows();
  }

 private:
  const RestoreBackward& given_;
  at::ScalarType type_;
  Scorer scorer_;
  ScorerGradient gradient_;
  at::Tensor m_;  // (B, H·d_p, d_out)
};

}  // namespace

TokenGradients token_pass(const at::Tensor& x, const Sequences& sequences,
                          const std::optional<CompressBackward>& compress,
                          const std::optional<RestoreBackward>& restore) {
  const auto type = accumulation_type(x.scalar_type());
  std::optional<CompressTokens> of_compress;
  std::optional<RestoreTokens> of_restore;
  int64_t width = x.size(1);
  if (compress) {
    of_compress.emplace(*compress, sequences, type);
    width = std::max(width, of_compress->rows());
  }
  if (restore) {
    of_restore.emplace(*restore, type);
    width = std::max({width, of_restore->rows(), restore->dy.size(1)});
  }
  const Pieces pieces(sequences, width);
  TokenRows dx(x, x.size(1));
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    at::Tensor gradient;
    if (of_compress) {
      gradient = of_compress->token_gradient(tile);
    }
    if (of_restore) {
      const auto part = of_restore->token_gradient(pieces, tile);
      gradient = gradient.defined() ? gradient.add_(part) : part;
    }
    dx.write(tile, gradient);
  }
  TokenGradients result;
  result.dx = dx.rows();
  if (of_compress) {
    of_compress->finish(result);
  }
  if (of_restore) {
    of_restore->finish(result);
  }
  return result;
}

std::pair<at::Tensor, at::Tensor> slot_pass(const at::Tensor& x, const Sequences& sequences,
                                            const RestoreBackward& restore) {
  const auto type = accumulation_type(x.scalar_type());
  const auto options = x.options().dtype(type);
  const Scorer scorer(restore.rows, type);
  const auto width = restore.dy.size(1);
  const Pieces pieces(sequences, std::max({scorer.rows(), x.size(1), width}));
  auto dm = at::zeros({sequences.count(), scorer.rows(), width}, options);
  auto dout_bias = at::zeros({width}, options);
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    const auto dy = pieces.gather(tile, restore.dy, type);
    auto weights = restore_weights(scorer.scores(tile), restore.heads, restore.linear);
    if (restore.dropout.p > 0) {
      weights = weights * tile_mask(restore.dropout, kSiteRestore, tile, scorer.rows());
    }
    dm.index_add_(0, tile.sequence, at::bmm(weights.transpose(1, 2), dy));
    dout_bias += dy.sum(at::IntArrayRef{0, 1});
  }
  return {dm, dout_bias};
}

}  // namespace dba::ops::reference
