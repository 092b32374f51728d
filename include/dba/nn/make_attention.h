#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dba/nn/dba_attention.h"

namespace dba {

/// Makes one attention layer. The module is an `Attention` too. Methods other than "dba" take what they know from the
/// options: d, heads, dropout, bias.
using AttentionFactory = std::function<std::shared_ptr<torch::nn::Module>(const DBAttentionOptions&)>;
/// The same for a method with options of its own, which come as they were written: "window=128, globals=2".
using ConfiguredAttentionFactory =
    std::function<std::shared_ptr<torch::nn::Module>(const DBAttentionOptions&, const std::string&)>;

/// Adds a method to those that `make_attention` knows; a name can be taken once.
void register_attention(const std::string& method, AttentionFactory factory);
void register_configured_attention(const std::string& method, ConfiguredAttentionFactory factory);
/// The known methods, in alphabetical order.
std::vector<std::string> attention_methods();

/// A new attention layer of the method of that name, which may carry options: "longformer(window=128, globals=2)";
/// dynamic_cast to `Attention` gives its interface.
std::shared_ptr<torch::nn::Module> make_attention(const std::string& method, const DBAttentionOptions& options);

/// Refuses, with the same words, what `make_attention` would refuse of a method and its options at any width.
void check_attention(const std::string& method);

}  // namespace dba
