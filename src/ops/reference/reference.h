#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dba/ops.h"

/// Each operator in plain ATen, for every type and device. Arguments are checked already.
namespace dba::ops::reference {

Summary compress(const at::Tensor& x, const Sequences& sequences, const ScoreRows& rows, const Dropout& dropout);

at::Tensor restore(const at::Tensor& x, const Sequences& sequences, const at::Tensor& rows, const at::Tensor& bias,
                   const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear, const Dropout& dropout);

CoreResult core(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                const Dropout& dropout);

struct CoreGradients {
  at::Tensor dc, dr;
  CoreWeights weights;  ///< gradients; undefined where the weight is absent
};

/// dm and dcompressed may be undefined: zero.
CoreGradients core_backward(const at::Tensor& c, const at::Tensor& r, const CoreWeights& weights, int64_t heads,
                            const Dropout& dropout, const at::Tensor& dm, const at::Tensor& dcompressed);

}  // namespace dba::ops::reference
