#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "ops/reference/passes.h"

namespace dba::ops::reference {
namespace {

at::Tensor widened(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

at::Tensor zeros_or_absent(const at::Tensor& tensor) {
  return tensor.defined() ? at::zeros_like(tensor) : tensor;
}

}  // namespace

Scorer::Scorer(const ScoreRows& rows, at::ScalarType type)
    : each(widened(rows.each, type)),
      each_bias(widened(rows.each_bias, type)),
      shared(widened(rows.shared, type)),
      shared_bias(widened(rows.shared_bias, type)),
      each_rows_(rows.each.defined() ? rows.each.size(1) : 0),
      shared_rows_(rows.shared.defined() ? rows.shared.size(0) : 0) {}

at::Tensor Scorer::scores(const Tile& tile) const {
  at::Tensor of_each;
  if (each_rows_ > 0) {
    of_each = at::bmm(tile.x, each.index_select(0, tile.sequence).transpose(1, 2));
    if (each_bias.defined()) {
      of_each += each_bias.index_select(0, tile.sequence).unsqueeze(1);
    }
    if (shared_rows_ == 0) {
      return of_each;
    }
  }
  auto of_all = at::matmul(tile.x, shared.t());
  if (shared_bias.defined()) {
    of_all += shared_bias;
  }
  return each_rows_ == 0 ? of_all : at::cat({of_each, of_all}, 2);
}

at::Tensor Scorer::token_gradient(const Tile& tile, const at::Tensor& dscores) const {
  at::Tensor gradient;
  if (each_rows_ > 0) {
    gradient = at::bmm(dscores.narrow(2, 0, each_rows_), each.index_select(0, tile.sequence));
    if (shared_rows_ == 0) {
      return gradient;
    }
  }
  const auto from_shared = at::matmul(dscores.narrow(2, each_rows_, shared_rows_), shared);
  return each_rows_ == 0 ? from_shared : gradient.add_(from_shared);
}

ScorerGradient::ScorerGradient(const Scorer& scorer)
    : each(zeros_or_absent(scorer.each)),
      each_bias(zeros_or_absent(scorer.each_bias)),
      shared(zeros_or_absent(scorer.shared)),
      shared_bias(zeros_or_absent(scorer.shared_bias)) {}

void ScorerGradient::add(const Tile& tile, const at::Tensor& dscores) {
  const auto each_rows = each.defined() ? each.size(1) : 0;
  if (each_rows > 0) {
    const auto part = dscores.narrow(2, 0, each_rows);
    each.index_add_(0, tile.sequence, at::bmm(part.transpose(1, 2), tile.x));
    if (each_bias.defined()) {
      each_bias.index_add_(0, tile.sequence, part.sum(1));
    }
  }
  if (shared.defined() && shared.size(0) > 0) {
    const auto part = dscores.narrow(2, each_rows, shared.size(0)).reshape({-1, shared.size(0)});
    shared.addmm_(part.t(), tile.x.reshape({-1, tile.x.size(2)}));
    if (shared_bias.defined()) {
      shared_bias += part.sum(0);
    }
  }
}

at::Tensor compress_weights(const Tile& tile, const at::Tensor& scores, const at::Tensor& shift,
                            const at::Tensor& lengths, int64_t linear) {
  const auto softmax_rows = scores.size(2) - linear;
  const auto absent = tile.valid.logical_not();
  at::Tensor weights;
  if (softmax_rows > 0) {
    const auto of_sequence = shift.narrow(1, 0, softmax_rows).index_select(0, tile.sequence).unsqueeze(1);
    weights = (scores.narrow(2, 0, softmax_rows) - of_sequence).exp_().masked_fill_(absent, 0);
    if (linear == 0) {
      return weights;
    }
  }
  const auto length = lengths.index_select(0, tile.sequence).clamp_min(1).to(scores.scalar_type()).view({-1, 1, 1});
  const auto of_linear = (scores.narrow(2, softmax_rows, linear) / length).masked_fill_(absent, 0);
  return softmax_rows == 0 ? of_linear : at::cat({weights, of_linear}, 2);
}

at::Tensor restore_weights(const at::Tensor& scores, int64_t heads, bool linear) {
  if (linear) {
    return scores;
  }
  const auto d_p = scores.size(2) / heads;
  return scores.view({scores.size(0), scores.size(1), heads, d_p}).softmax(3).view_as(scores);
}

ScoreRows restore_score_rows(const at::Tensor& rows, const at::Tensor& bias) {
  ScoreRows result;
  if (rows.dim() == 3) {
    result.each = rows;
    result.each_bias = bias;
  } else {
    result.shared = rows;
    result.shared_bias = bias;
  }
  return result;
}

}  // namespace dba::ops::reference
