#include "dba/nn/attention.h"

#include <torch/torch.h>

#include "nn/named_choice.h"
#include "nn/rows.h"

namespace dba {
namespace {

constexpr NamedChoice<Form> kForms[] = {{"paper", Form::paper}, {"released", Form::released}};
constexpr NamedChoice<Normalise> kNormalises[] = {{"softmax", Normalise::softmax}, {"linear", Normalise::linear}};
constexpr NamedChoice<ZUpdate> kZUpdates[] = {{"residual_norm", ZUpdate::residual_norm},
                                              {"replace", ZUpdate::replace},
                                              {"fixed", ZUpdate::fixed},
                                              {"own", ZUpdate::own}};

}  // namespace

Form parse_form(const std::string& name) {
  return parse_choice("parse_form", name, kForms);
}
Normalise parse_normalise(const std::string& name) {
  return parse_choice("parse_normalise", name, kNormalises);
}
ZUpdate parse_z_update(const std::string& name) {
  return parse_choice("parse_z_update", name, kZUpdates);
}
std::string to_string(Form form) {
  return name_of(form, kForms);
}
std::string to_string(Normalise normalise) {
  return name_of(normalise, kNormalises);
}
std::string to_string(ZUpdate z_update) {
  return name_of(z_update, kZUpdates);
}

AttentionOutput Attention::forward(const at::Tensor& x, const std::optional<Sequences>& sequences, const at::Tensor& z,
                                   bool need_weights) {
  return attend(x, sequences ? *sequences : plain_batch("Attention", "x", x, 3), z, need_weights);
}

}  // namespace dba
