#include "dba/nn/slots.h"

#include <torch/torch.h>

#include <cmath>

namespace dba {

SlotsImpl::SlotsImpl(SlotsOptions options_) : options(std::move(options_)) {
  TORCH_CHECK(options.d_p() >= 1, "dba::Slots: d_p must be 1 or more, got ", options.d_p());
  TORCH_CHECK(options.d() >= 1, "dba::Slots: d must be 1 or more, got ", options.d());
  TORCH_CHECK(options.dropout() >= 0 && options.dropout() < 1, "dba::Slots: dropout must be in [0, 1), got ",
              options.dropout());
  reset();
}

void SlotsImpl::reset() {
  z = register_parameter("z", torch::empty({options.d_p(), options.d()}));
  if (options.layer_norm()) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.d()})));
  }
  reset_parameters();
}

void SlotsImpl::reset_parameters() {
  torch::nn::init::normal_(z, 0.0, 1.0 / std::sqrt(static_cast<double>(options.d())));
  if (norm) {
    norm->reset_parameters();
  }
}

void SlotsImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Slots(d_p=" << options.d_p() << ", d=" << options.d() << ", dropout=" << options.dropout()
         << ", layer_norm=" << std::boolalpha << options.layer_norm() << ")";
}

at::Tensor SlotsImpl::forward(int64_t batch) {
  const auto slots = norm ? norm->forward(z) : z;
  if (!is_training() || options.dropout() == 0) {
    return slots;
  }
  return torch::dropout(slots.unsqueeze(0).expand({batch, -1, -1}), options.dropout(), /*train=*/true);
}

}  // namespace dba
