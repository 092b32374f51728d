#pragma once

#include "dba/ops.h"
#include "support/cases.h"
#include "support/masks.h"

/// The operators as their definitions read: one sequence and one head at a time, in plain ATen, differentiable.
namespace dba::test {

ops::Summary plain_compress(const at::Tensor& x, const PackedBatch& batch, const ops::ScoreRows& rows,
                            const ops::Dropout& dropout = {});

at::Tensor plain_restore(const at::Tensor& x, const PackedBatch& batch, const at::Tensor& rows, const at::Tensor& bias,
                         const at::Tensor& m, const at::Tensor& out_bias, int64_t heads, bool linear,
                         const ops::Dropout& dropout = {});

ops::CoreResult plain_core(const at::Tensor& c, const at::Tensor& r, const ops::CoreWeights& weights, int64_t heads,
                           const ops::Dropout& dropout = {});

}  // namespace dba::test
