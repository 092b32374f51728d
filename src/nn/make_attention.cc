#include "dba/nn/make_attention.h"

#include <map>
#include <mutex>

#include "dba/nn/softmax_attention.h"

namespace dba {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, AttentionFactory> factories;
};

std::shared_ptr<torch::nn::Module> make_dba(const DBAttentionOptions& options) {
  return DBAttention(options).ptr();
}

std::shared_ptr<torch::nn::Module> make_softmax(const DBAttentionOptions& options) {
  return SoftmaxAttention(
             SoftmaxAttentionOptions(options.d(), options.heads()).dropout(options.dropout()).bias(options.bias()))
      .ptr();
}

Registry& registry() {
  static Registry instance{{}, {{"dba", make_dba}, {"softmax", make_softmax}}};
  return instance;
}

}  // namespace

void register_attention(const std::string& method, AttentionFactory factory) {
  auto& known = registry();
  const std::lock_guard lock(known.mutex);
  const bool inserted = known.factories.emplace(method, std::move(factory)).second;
  TORCH_CHECK(inserted, "dba::register_attention: the name \"", method, "\" is taken; choose another");
}

std::vector<std::string> attention_methods() {
  auto& known = registry();
  const std::lock_guard lock(known.mutex);
  std::vector<std::string> methods;
  for (const auto& [method, factory] : known.factories) {
    methods.push_back(method);
  }
  return methods;
}

std::shared_ptr<torch::nn::Module> make_attention(const std::string& method, const DBAttentionOptions& options) {
  AttentionFactory factory;
  {
    auto& known = registry();
    const std::lock_guard lock(known.mutex);
    const auto found = known.factories.find(method);
    if (found != known.factories.end()) {
      factory = found->second;
    }
  }
  TORCH_CHECK(factory, "dba::make_attention: method must be one of ", c10::Join(", ", attention_methods()), ", got \"",
              method, "\"");
  auto module = factory(options);
  TORCH_CHECK(dynamic_cast<Attention*>(module.get()) != nullptr, "dba::make_attention: the factory of \"", method,
              "\" must make a module that is a dba::Attention");
  return module;
}

}  // namespace dba
