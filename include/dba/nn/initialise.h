#pragma once

#include <torch/nn/module.h>

#include <string>

namespace dba {

/// How parameters are drawn at first. By default norms start at the identity, Z is N(0, 1/d) and R is N(0, 1/e);
/// N(m, v) has variance v. For the rest:
///   luna           as Luna's Long-Range Arena models: linear layers inside attentions Xavier-uniform with gain 1/√2,
///                  those called `w_o` and the classifier head with gain 1, all of these with biases 0; feed-forward
///                  layers as torch::nn::Linear draws them; token and position embeddings N(0, 1/d)
///   bert           linear layers, embeddings and Z N(0, 0.02²), biases 0
///   torch_default  as the time-series code: every linear layer as torch::nn::Linear draws it, token embeddings
///                  N(0, 1/d), learned positions U(−0.02, 0.02)
enum class Initialise { luna, bert, torch_default };

Initialise parse_initialise(const std::string& name);
std::string to_string(Initialise scheme);

/// Draws all parameters of `module` and of the modules in it anew. Modules that are not from this library or
/// torch::nn::Linear are left alone, but what they contain is visited.
void initialise(torch::nn::Module& module, Initialise scheme);

}  // namespace dba
