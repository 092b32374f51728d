#pragma once

#include <optional>
#include <tuple>

#include "ops/cuda/core_call.h"

namespace dba::ops::cuda {

/// The attention between slots forward: q and k behind R, `normed` is what it writes.
CoreAttendArguments attend_arguments(const CoreCall& call, const at::Tensor& q, const at::Tensor& k,
                                     const at::Tensor& v, const at::Tensor& normed);

/// The products that make q, k, v of form `paper`, before R.
void append_paper_projections(ProductList& list, const CoreCall& call, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v);

/// q, k, v of form `released`, before the attention between slots; `compressed` is written on the way. Two lists;
/// the first makes the product `beside` as well.
std::tuple<at::Tensor, at::Tensor, at::Tensor> project_released(const CoreCall& call, const at::Tensor& compressed,
                                                                const std::optional<Product>& beside = {});

}  // namespace dba::ops::cuda
