#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "dba/ops.h"

/// Residual, dropout and LayerNorm in one pass over the tokens, forward and backward. All functions are differentiable;
/// an undefined tensor means "absent".
///
/// Tokens are (N, d) rows; every row is treated, and every row by itself. The branch is of the residual's type, or of
/// float16 or bfloat16 beside a float32 residual. Arithmetic, statistics and sums over rows are in the accumulation
/// type (float32 for float16 and bfloat16). A sum has the residual's type, what a norm returns has the branch's.
///
/// Under autocast the residual keeps its type and the branch is cast. So a pre-norm layer keeps the float32 stream that
/// the embedding began, and a post-norm layer hands on normalised tokens in the type that its products read: nowhere
/// are tokens cast to float32 for a norm's sake, and the norm itself is computed in float32 all the same.
namespace dba::ops {

/// What is added to the residual: dropout(value + bias). The mask's entry of row i and column j is that of token i and
/// slot j at kSiteResidual, sequence 0.
struct Branch {
  at::Tensor value;      ///< (N, d)
  at::Tensor bias = {};  ///< (d) or absent: the bias of the linear layer in front, whose gradient then costs no pass
  Dropout dropout = {};
};

struct LayerNormWeights {
  at::Tensor weight = {};  ///< (d) or absent: 1
  at::Tensor bias = {};    ///< (d) or absent: 0
  double eps = 1e-5;
};

/// residual + dropout(branch).
at::Tensor residual_sum(const at::Tensor& residual, const Branch& branch);

/// LayerNorm(residual + dropout(branch)): post-norm. The sum itself is never stored; backward recomputes it.
at::Tensor residual_norm(const at::Tensor& residual, const Branch& branch, const LayerNormWeights& norm);

struct SumAndNorm {
  at::Tensor sum;  ///< (N, d) the next residual, of the residual's type
  at::Tensor y;    ///< (N, d) LayerNorm of the sum as it is stored
};

/// Both: pre-norm.
SumAndNorm residual_sum_and_norm(const at::Tensor& residual, const Branch& branch, const LayerNormWeights& norm);

/// LayerNorm(x), in `dtype`, or else in the type that autocast asks for, or else in x's.
at::Tensor layer_norm(const at::Tensor& x, const LayerNormWeights& norm,
                      std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace dba::ops
