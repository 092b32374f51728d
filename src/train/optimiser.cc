#include "dba/train/optimiser.h"

#include <torch/torch.h>

#include <cmath>

namespace dba::train {
namespace {

using at::Tensor;
using at::TensorList;

std::vector<Tensor> with_decay(const std::vector<Tensor>& gradients, const std::vector<Tensor>& parameters,
                               double weight_decay) {
  return weight_decay == 0 ? gradients : at::_foreach_add(gradients, parameters, weight_decay);
}

void decay_decoupled(const std::vector<Tensor>& parameters, double lr, double weight_decay) {
  if (weight_decay != 0) {
    at::_foreach_mul_(parameters, 1.0 - lr * weight_decay);
  }
}

class Adam : public Optimiser {
 public:
  Adam(const config::OptimiserConfig& config, Parameters parameters, bool decoupled)
      : Optimiser(std::move(parameters)), config_(config), decoupled_(decoupled) {
    add_state("m");
    add_state("v");
  }

 protected:
  void apply(Group& group, double lr, double t) override {
    if (decoupled_) {
      decay_decoupled(group.parameters, lr, config_.weight_decay);
    }
    update_moments(group, decoupled_ ? 0.0 : config_.weight_decay);
    const auto [beta1, beta2] = config_.betas;
    auto denominator = at::_foreach_sqrt(group.states[1]);
    at::_foreach_div_(denominator, std::sqrt(1.0 - std::pow(beta2, t)));
    at::_foreach_add_(denominator, config_.eps);
    at::_foreach_addcdiv_(group.parameters, group.states[0], denominator, -lr / (1.0 - std::pow(beta1, t)));
  }

  std::vector<double> numbers(double lr, double t) const override {
    return {lr, t};
  }
  void apply(Group& group, const Tensor& numbers) override {
    const auto [beta1, beta2] = config_.betas;
    const std::vector<Tensor> t(group.parameters.size(), numbers.select(0, 1));
    const auto fused = [&](auto function) {
      function(group.parameters, group.gradients, group.states[0], group.states[1], TensorList(), t,
               numbers.select(0, 0), beta1, beta2, config_.weight_decay, config_.eps, /*amsgrad=*/false,
               /*maximize=*/false, std::nullopt, std::nullopt);
    };
    if (decoupled_) {
      fused(at::_ops::_fused_adamw__tensor_lr::call);
    } else {
      fused(at::_ops::_fused_adam__tensor_lr::call);
    }
  }

  void update_moments(Group& group, double weight_decay) {
    const auto [beta1, beta2] = config_.betas;
    const auto gradients = with_decay(group.gradients, group.parameters, weight_decay);
    at::_foreach_lerp_(group.states[0], gradients, 1.0 - beta1);
    at::_foreach_mul_(group.states[1], beta2);
    at::_foreach_addcmul_(group.states[1], gradients, gradients, 1.0 - beta2);
  }

  config::OptimiserConfig config_;

 private:
  bool decoupled_;
};

class RAdam : public Adam {
 public:
  RAdam(const config::OptimiserConfig& config, Parameters parameters) : Adam(config, std::move(parameters), true) {}

 protected:
  void apply(Group& group, double lr, double t) override {
    decay_decoupled(group.parameters, lr, config_.weight_decay);
    update_moments(group, 0.0);
    const auto [factor, rectified] = factor_of(lr, t);
    if (!rectified) {
      at::_foreach_add_(group.parameters, group.states[0], factor);
      return;
    }
    at::_foreach_addcdiv_(group.parameters, group.states[0], denominator(group), factor);
  }

  std::vector<double> numbers(double lr, double t) const override {
    return {1.0 - lr * config_.weight_decay, factor_of(lr, t).first};
  }
  void apply(Group& group, const Tensor& numbers) override {
    if (config_.weight_decay != 0) {
      at::_foreach_mul_(group.parameters, numbers.select(0, 0));
    }
    update_moments(group, 0.0);
    auto change = factor_of(1.0, static_cast<double>(updates())).second
                      ? at::_foreach_div(group.states[0], denominator(group))
                      : at::_foreach_mul(group.states[0], 1.0);
    at::_foreach_mul_(change, numbers.select(0, 1));
    at::_foreach_add_(group.parameters, change);
  }

  bool settled() const override {
    return factor_of(1.0, static_cast<double>(updates() + 1)).second;
  }

 private:
  /// What the first moment, or its quotient with the root of the second one, is multiplied by, and whether it is the
  /// quotient: from the update on at which ρ_t reaches 5.
  std::pair<double, bool> factor_of(double lr, double t) const {
    const auto [beta1, beta2] = config_.betas;
    const auto beta2_t = std::pow(beta2, t);
    const auto rho_inf = 2.0 / (1.0 - beta2) - 1.0;
    const auto rho = rho_inf - 2.0 * t * beta2_t / (1.0 - beta2_t);
    const auto first = lr / (1.0 - std::pow(beta1, t));
    if (rho < 5.0) {
      return {-first, false};
    }
    const auto rectified =
        std::sqrt((1.0 - beta2_t) * (rho - 4.0) * (rho - 2.0) * rho_inf / ((rho_inf - 4.0) * (rho_inf - 2.0) * rho));
    return {-first * rectified, true};
  }

  std::vector<Tensor> denominator(const Group& group) const {
    auto root = at::_foreach_sqrt(group.states[1]);
    at::_foreach_add_(root, config_.eps);
    return root;
  }
};

class Sgd : public Optimiser {
 public:
  Sgd(const config::OptimiserConfig& config, Parameters parameters)
      : Optimiser(std::move(parameters)), momentum_(config.momentum), weight_decay_(config.weight_decay) {
    add_state("momentum");
  }

 protected:
  void apply(Group& group, double lr, double /*t*/) override {
    const auto gradients = with_decay(group.gradients, group.parameters, weight_decay_);
    at::_foreach_mul_(group.states[0], momentum_);
    at::_foreach_add_(group.states[0], gradients);
    at::_foreach_add_(group.parameters, group.states[0], -lr);
  }

  std::vector<double> numbers(double lr, double /*t*/) const override {
    return {-lr};
  }
  void apply(Group& group, const Tensor& numbers) override {
    const auto gradients = with_decay(group.gradients, group.parameters, weight_decay_);
    at::_foreach_mul_(group.states[0], momentum_);
    at::_foreach_add_(group.states[0], gradients);
    at::_foreach_add_(group.parameters, at::_foreach_mul(group.states[0], numbers.select(0, 0)));
  }

 private:
  double momentum_, weight_decay_;
};

}  // namespace

Optimiser::Optimiser(Parameters parameters) : parameters_(std::move(parameters)) {}

void Optimiser::add_state(const std::string& name) {
  ++states_per_parameter_;
  for (const auto& [parameter, tensor] : parameters_) {
    state_.emplace_back(name + "." + parameter, torch::zeros_like(tensor, at::MemoryFormat::Contiguous));
  }
}

Optimiser::Group Optimiser::group() const {
  Group group;
  group.states.resize(states_per_parameter_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i].second;
    if (!parameter.grad().defined()) {
      continue;
    }
    group.parameters.push_back(parameter);
    group.gradients.push_back(parameter.grad());
    for (std::size_t k = 0; k < states_per_parameter_; ++k) {
      group.states[k].push_back(state_[k * parameters_.size() + i].second);
    }
  }
  return group;
}

void Optimiser::step(double lr) {
  const torch::NoGradGuard no_grad;
  const auto on_gpu = !parameters_.empty() && parameters_.front().second.is_cuda();
  if (on_gpu) {
    const auto numbers = torch::tensor(next_numbers(lr), at::kDouble).pin_memory();
    return step(numbers.to(parameters_.front().second.device(), /*non_blocking=*/true));
  }
  ++updates_;
  if (auto all = group(); !all.parameters.empty()) {
    apply(all, lr, static_cast<double>(updates_));
  }
}

std::vector<double> Optimiser::next_numbers(double lr) {
  ++updates_;
  return numbers(lr, static_cast<double>(updates_));
}

void Optimiser::step(const Tensor& numbers) {
  const torch::NoGradGuard no_grad;
  if (auto all = group(); !all.parameters.empty()) {
    apply(all, numbers.to(at::kFloat));
  }
}

void Optimiser::zero_grad() {
  for (const auto& [name, parameter] : parameters_) {
    Tensor shared = parameter;
    shared.mutable_grad() = Tensor();
  }
}

std::unique_ptr<Optimiser> make_optimiser(const config::OptimiserConfig& config, Parameters parameters) {
  if (config.name == "radam") {
    return std::make_unique<RAdam>(config, std::move(parameters));
  }
  if (config.name == "sgd") {
    return std::make_unique<Sgd>(config, std::move(parameters));
  }
  TORCH_CHECK(config.name == "adamw" || config.name == "adam",
              "dba::make_optimiser: name must be one of adamw, adam, radam, sgd, got \"", config.name, "\"");
  return std::make_unique<Adam>(config, std::move(parameters), config.name == "adamw");
}

at::Tensor clip_gradients(const Parameters& parameters, double limit) {
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.grad().defined()) {
      gradients.push_back(parameter.grad());
    }
  }
  if (gradients.empty()) {
    return torch::zeros({});
  }
  const auto norm = torch::stack(at::_foreach_norm(gradients)).norm();
  at::_foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp_max(1.0));
  return norm;
}

}  // namespace dba::train
