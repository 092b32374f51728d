#pragma once

#include "nn/direct.h"

/// DBA by projecting first: queries and keys of all tokens by plain linear layers, then attention over each sequence
/// and head with Z as the queries. The scores of a token cost d instead of H·d a slot, against two products of width d,
/// so it is the cheaper order where heads and slots are many and tokens narrow. W_c' and W_r' act on X as in the two
/// passes. PyTorch's autograd derives it from the operators' own gradients.
namespace dba::projected {

/// The same function as ops::attention, for self-attention without dropout: heads become sequences here, so compress
/// would draw other masks.
ops::AttentionResult attention(const direct::Layer& layer);

}  // namespace dba::projected
