#include "dba/nn/initialise.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <cmath>

#include "dba/nn/attention.h"
#include "dba/nn/dba_attention.h"
#include "dba/nn/dba_cross_attention.h"
#include "dba/nn/embedding.h"
#include "dba/nn/head.h"
#include "dba/nn/norm.h"
#include "dba/nn/position.h"
#include "dba/nn/slots.h"
#include "dba/zoo.h"
#include "nn/named_choice.h"

namespace dba {
namespace {

constexpr NamedChoice<Initialise> kSchemes[] = {
    {"luna", Initialise::luna}, {"bert", Initialise::bert}, {"torch_default", Initialise::torch_default}};
constexpr double kBertDeviation = 0.02;
constexpr double kPositionBound = 0.02;

/// Where a linear layer stands.
enum class Place { elsewhere, attention, head };

/// Lets the module draw its own defaults if it is one of Modules.
template <class... Modules>
void reset_if_any_of(torch::nn::Module& module) {
  const auto reset = [](auto* known) {
    if (known != nullptr) {
      known->reset_parameters();
    }
  };
  (reset(dynamic_cast<Modules*>(&module)), ...);
}

void draw_linear(torch::nn::LinearImpl& linear, const std::string& name, Place place, Initialise scheme) {
  if (scheme == Initialise::bert) {
    torch::nn::init::normal_(linear.weight, 0.0, kBertDeviation);
  } else if (scheme == Initialise::luna && place != Place::elsewhere) {
    const bool projects_in = place == Place::attention && name != "w_o";
    torch::nn::init::xavier_uniform_(linear.weight, projects_in ? 1.0 / std::sqrt(2.0) : 1.0);
  } else {
    linear.reset_parameters();
    return;
  }
  if (linear.bias.defined()) {
    torch::nn::init::zeros_(linear.bias);
  }
}

void visit(torch::nn::Module& module, const std::string& name, Place place, Initialise scheme) {
  reset_if_any_of<TokenNormImpl, torch::nn::LayerNormImpl, SlotsImpl, TokenEmbeddingImpl, PositionEmbeddingImpl,
                  DBAttentionImpl, CompressorImpl, DBACrossAttentionImpl, zoo::ZooAttention>(module);
  if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
    draw_linear(*linear, name, place, scheme);
  } else if (auto* tokens = dynamic_cast<TokenEmbeddingImpl*>(&module); tokens && scheme == Initialise::bert) {
    torch::nn::init::normal_(tokens->weight, 0.0, kBertDeviation);
  } else if (auto* slots = dynamic_cast<SlotsImpl*>(&module); slots && scheme == Initialise::bert) {
    torch::nn::init::normal_(slots->z, 0.0, kBertDeviation);
  } else if (auto* positions = dynamic_cast<PositionEmbeddingImpl*>(&module);
             positions && positions->weight.defined()) {
    if (scheme == Initialise::bert) {
      torch::nn::init::normal_(positions->weight, 0.0, kBertDeviation);
    } else if (scheme == Initialise::torch_default) {
      torch::nn::init::uniform_(positions->weight, -kPositionBound, kPositionBound);
    }
  }
  if (dynamic_cast<Attention*>(&module) != nullptr || dynamic_cast<CompressorImpl*>(&module) != nullptr ||
      dynamic_cast<DBACrossAttentionImpl*>(&module) != nullptr) {
    place = Place::attention;
  } else if (dynamic_cast<HeadImpl*>(&module) != nullptr) {
    place = Place::head;
  }
  for (const auto& child : module.named_children()) {
    visit(*child.value(), child.key(), place, scheme);
  }
}

}  // namespace

Initialise parse_initialise(const std::string& name) {
  return parse_choice("parse_initialise", name, kSchemes);
}

std::string to_string(Initialise scheme) {
  return name_of(scheme, kSchemes);
}

void initialise(torch::nn::Module& module, Initialise scheme) {
  visit(module, "", Place::elsewhere, scheme);
}

}  // namespace dba
