#pragma once

#include "dba/ops.h"

/// The passes on tensors: the Hopper kernels where they can serve, else the general ones. Arguments are checked, and
/// tokens_obstacle is empty.
namespace dba::ops::cuda {

struct RestoreOperands {
  at::Tensor rows, bias, m, out_bias;
  int64_t heads;
  bool linear;
  /// m in the tokens' type, where somebody has made it already; for the backward as KeptMixture says (ops/attention.h).
  at::Tensor m_rounded = {};
};

Summary compress_fused(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout);
at::Tensor restore_fused(const at::Tensor& x, const Sequences& sequences, const RestoreOperands& operands,
                         const Dropout& dropout);

struct RestoreGradients {
  at::Tensor dscores;  ///< (N, S) of x's type: the gradient of the scores, for dX
  at::Tensor dm;       ///< float
  /// Float, or of the operand's type where that is a half type and the Hopper kernels serve; undefined without one.
  at::Tensor rows, bias, out_bias;
};
RestoreGradients restore_backward_fused(const at::Tensor& x, const Sequences& sequences,
                                        const RestoreOperands& operands, const Dropout& dropout, const at::Tensor& dy);

struct CompressGradients {
  at::Tensor dx;
  /// Undefined where the operand is absent, and of its type or float.
  at::Tensor each, each_bias, shared, shared_bias;
};
/// dc, dr and dlse may be undefined. With `dscores` (and restore's rows) restore's part of dX is added; its memory is
/// used for other things afterwards.
CompressGradients compress_backward_fused(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows,
                                          const Dropout& dropout, const Summary& summary, const at::Tensor& dc,
                                          const at::Tensor& dr, const at::Tensor& dlse, const at::Tensor& dscores,
                                          const at::Tensor& restore_rows);

/// dX of restore alone: each token's dscores times its sequence's rows, (S, d) or (B, S, d).
at::Tensor restore_token_gradient(const at::Tensor& x, const Sequences& sequences, const at::Tensor& dscores,
                                  const at::Tensor& restore_rows);

}  // namespace dba::ops::cuda
