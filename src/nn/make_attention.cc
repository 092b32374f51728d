#include "dba/nn/make_attention.h"

#include <map>
#include <mutex>

#include "config/keys.h"
#include "dba/nn/softmax_attention.h"

namespace dba {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, ConfiguredAttentionFactory> factories;
};

/// A factory that knows no options of its own.
ConfiguredAttentionFactory without_options(const std::string& method, AttentionFactory factory) {
  return [method, factory = std::move(factory)](const DBAttentionOptions& options, const std::string& given) {
    TORCH_CHECK(given.empty(), "dba::make_attention: method \"", method, "\" has no options of its own, got \"", given,
                "\"");
    return factory(options);
  };
}

std::shared_ptr<torch::nn::Module> make_dba(const DBAttentionOptions& options) {
  return DBAttention(options).ptr();
}

std::shared_ptr<torch::nn::Module> make_softmax(const DBAttentionOptions& options) {
  return SoftmaxAttention(
             SoftmaxAttentionOptions(options.d(), options.heads()).dropout(options.dropout()).bias(options.bias()))
      .ptr();
}

Registry& registry() {
  static Registry instance{
      {}, {{"dba", without_options("dba", make_dba)}, {"softmax", without_options("softmax", make_softmax)}}};
  return instance;
}

}  // namespace

void register_attention(const std::string& method, AttentionFactory factory) {
  register_configured_attention(method, without_options(method, std::move(factory)));
}

void register_configured_attention(const std::string& method, ConfiguredAttentionFactory factory) {
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
  const auto bracket = method.find('(');
  TORCH_CHECK(bracket == std::string::npos || method.back() == ')', "dba::make_attention: method must be a name, or ",
              "name(option=value, …), got \"", method, "\"");
  const auto name = method.substr(0, bracket);
  const auto given = bracket == std::string::npos ? "" : method.substr(bracket + 1, method.size() - bracket - 2);
  ConfiguredAttentionFactory factory;
  {
    auto& known = registry();
    const std::lock_guard lock(known.mutex);
    const auto found = known.factories.find(name);
    if (found != known.factories.end()) {
      factory = found->second;
    }
  }
  if (!factory) {
    const auto known = attention_methods();
    TORCH_CHECK(false, "dba::make_attention: method must be one of ", c10::Join(", ", known), ", got \"", name,
                "\"; the nearest known one is \"", config::nearest_of(name, known), "\"");
  }
  auto module = factory(options, given);
  TORCH_CHECK(dynamic_cast<Attention*>(module.get()) != nullptr, "dba::make_attention: the factory of \"", name,
              "\" must make a module that is a dba::Attention");
  return module;
}

void check_attention(const std::string& method) {
  // Methods look at their options where they are made; the narrowest layer costs next to nothing.
  constexpr int64_t kWidth = 2, kHeads = 1;
  make_attention(method, DBAttentionOptions(kWidth, kHeads));
}

}  // namespace dba
