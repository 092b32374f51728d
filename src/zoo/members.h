#pragma once

#include "dba/zoo.h"

/// The records of all members, each from the file of its name.
namespace dba::zoo {

Member softmax_member();
Member dba_member();
Member local_member();
Member sparse_member();
Member longformer_member();
Member bigbird_member();
Member linformer_member();
Member reformer_member();
Member sinkhorn_member();
Member synthesizer_member();
Member linear_member();
Member performer_member();
Member cosformer_member();
Member fnet_member();
Member nystromformer_member();
Member yoso_member();
Member scatterbrain_member();
Member pixelfly_member();
Member luna_member();
Member flowformer_member();

/// `build` of a member whose module is made from its name, options and values.
template <class Module>
std::shared_ptr<torch::nn::Module> built(const DBAttentionOptions& options, const OptionValues& values) {
  auto module = std::make_shared<Module>(options, values);
  module->reset_parameters();
  return module;
}

/// The options that several members have.
inline Option seed_option() {
  return {"seed", "1", "decides the random choices", 0, {}, kLargestSeed};
}
inline Option max_length_option() {
  return {"max_length", "", "the longest sequence; must be given", 1, {}};
}

}  // namespace dba::zoo
