#pragma once

#include <torch/nn/modules/linear.h>

#include "dba/nn/dba_attention.h"

namespace dba {

/// The checks that all modules with DBAttentionOptions share.
void check_options(const char* module, const DBAttentionOptions& options);

/// e = ceil(d_in / H), or d_h without width compression.
int64_t width_per_head(const DBAttentionOptions& options);
/// Says that d_in was rounded up, where it was.
void warn_of_rounding(const char* module, const DBAttentionOptions& options);

/// The tokens are of the parameters' type, unless autocast settles the types.
void check_type(const char* module, const char* argument, const at::Tensor& x, const at::Tensor& parameter);

torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias);

/// R (H, d_h, e) ~ N(0, 1/e).
void reset_width(at::Tensor& r);

std::ostream& operator<<(std::ostream& stream, const DBAttentionOptions& options);

}  // namespace dba
