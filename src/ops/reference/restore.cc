#include <ATen/TensorOperators.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>

#include <algorithm>

#include "ops/checks.h"
#include "ops/reference/passes.h"
#include "ops/reference/reference.h"

namespace dba::ops::reference {

at::Tensor restore(const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows, const at::Tensor& bias,
                   const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear,
                   const Dropout& dropout) {
  const auto type = accumulation_type(x.scalar_type());
  const Scorer scorer(restore_score_rows(rows, bias), type);
  const auto mix = m.to(type);
  const Pieces pieces(sequences, std::max({scorer.rows(), x.size(1), m.size(2)}));
  TokenRows y(x, m.size(2));
  for (int64_t group = 0; group < pieces.groups(); ++group) {
    const auto tile = pieces.tile(group, x);
    auto weights = restore_weights(scorer.scores(tile), heads, linear);
    if (dropout.p > 0) {
      weights = weights * tile_mask(dropout, kSiteRestore, tile, scorer.rows());
    }
    auto values = at::bmm(weights, mix.index_select(0, tile.sequence));
    if (out_bias.defined()) {
      values += out_bias.to(type);
    }
    y.write(tile, values);
  }
  return y.rows();
}

}  // namespace dba::ops::reference
