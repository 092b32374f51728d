#include "dba/nn/attention.h"

#include <torch/torch.h>

#include <array>

#include "ops/checks.h"

namespace dba {
namespace {

template <class Value, size_t count>
using Names = std::array<std::pair<Value, const char*>, count>;

constexpr Names<Form, 2> kForms{{{Form::paper, "paper"}, {Form::released, "released"}}};
constexpr Names<Normalise, 2> kNormalises{{{Normalise::softmax, "softmax"}, {Normalise::linear, "linear"}}};
constexpr Names<ZUpdate, 4> kZUpdates{{{ZUpdate::residual_norm, "residual_norm"},
                                       {ZUpdate::replace, "replace"},
                                       {ZUpdate::fixed, "fixed"},
                                       {ZUpdate::own, "own"}}};

template <class Value, size_t count>
Value parse(const Names<Value, count>& names, const char* function, const std::string& name) {
  std::string known;
  for (const auto& [value, text] : names) {
    if (name == text) {
      return value;
    }
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  TORCH_CHECK(false, "dba::", function, ": name must be one of ", known, ", got \"", name, "\"");
}

template <class Value, size_t count>
std::string name_of(const Names<Value, count>& names, Value wanted) {
  for (const auto& [value, text] : names) {
    if (value == wanted) {
      return text;
    }
  }
  return "?";
}

}  // namespace

Form parse_form(const std::string& name) {
  return parse(kForms, "parse_form", name);
}
Normalise parse_normalise(const std::string& name) {
  return parse(kNormalises, "parse_normalise", name);
}
ZUpdate parse_z_update(const std::string& name) {
  return parse(kZUpdates, "parse_z_update", name);
}
std::string to_string(Form form) {
  return name_of(kForms, form);
}
std::string to_string(Normalise normalise) {
  return name_of(kNormalises, normalise);
}
std::string to_string(ZUpdate z_update) {
  return name_of(kZUpdates, z_update);
}

AttentionOutput Attention::forward(const at::Tensor& x, const at::Tensor& z, bool need_weights) {
  TORCH_CHECK(x.defined() && x.dim() == 3,
              "dba::Attention: x must be of shape (B, n, d) when no sequences are given, got ", ops::describe(x));
  return attend(x, Sequences::dense(x.size(0), x.size(1), x.device()), z, need_weights);
}

}  // namespace dba
