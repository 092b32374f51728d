#include "bench/work.h"

#include <torch/torch.h>

#include "train/autocast_step.h"

namespace dba::bench {
namespace {

constexpr uint64_t kSeed = 1;
/// Small enough that the thousands of steps of a measurement leave the model as it is.
constexpr double kLearningRate = 1e-7;

train::Parameters named_parameters(const torch::nn::Module& module) {
  train::Parameters parameters;
  for (const auto& parameter : module.named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
  }
  return parameters;
}

}  // namespace

Work::Work(const Settings& settings, const Method& method, const Case& one)
    : kind_(settings.kind),
      sizes_(settings.sizes),
      method_(method),
      precision_(one.precision),
      length_(one.length),
      sequences_(Sequences::dense(one.batch, one.length, settings.device)) {
  torch::manual_seed(kSeed);
  model_ = make_model(kind_, method_, sizes_, length_);
  model_.module->to(settings.device, storage_type(precision_));
  input_ = make_input(kind_, one, sizes_, settings.device);
  if (kind_ == Kind::train_step) {
    targets_ = torch::randint(kClasses, {one.batch}, input_.options());
    config::OptimiserConfig optimiser;
    optimiser_ = train::make_optimiser(optimiser, named_parameters(*model_.module));
    // A recorded step reads them where they lie.
    numbers_ = torch::tensor(optimiser_->next_numbers(kLearningRate), at::kDouble).to(settings.device);
  }
}

Work::Work(const Work& other, const Method& method, Precision precision)
    : kind_(other.kind_),
      sizes_(other.sizes_),
      method_(method),
      precision_(precision),
      length_(other.length_),
      model_(make_model(kind_, method, sizes_, length_)) {
  const torch::NoGradGuard no_grad;
  const auto from = other.model_.module->named_parameters();
  model_.module->to(other.input_.device(), storage_type(precision));
  for (auto& parameter : model_.module->named_parameters()) {
    parameter.value().copy_(from[parameter.key()]);
  }
}

at::Tensor Work::forward(const at::Tensor& input, const Sequences& sequences) {
  const train::AutocastStep autocast(input.device().type(), precision_ == Precision::autocast);
  return model_.forward(input, sequences);
}

void Work::run(Pass pass) {
  const MethodScope scope(method_);
  model_.module->train(pass != Pass::forward);
  switch (pass) {
    case Pass::forward: {
      const torch::NoGradGuard no_grad;
      forward(input_, sequences_);
      return;
    }
    case Pass::forward_backward:
      return forward_backward();
    case Pass::step:
      return step();
  }
}

void Work::forward_backward() {
  const auto x = input_.detach().requires_grad_();
  const auto y = forward(x, sequences_);
  if (!dy_.defined()) {
    dy_ = torch::randn_like(y);
  }
  auto leaves = model_.module->parameters();
  leaves.insert(leaves.begin(), x);
  torch::autograd::grad({y}, leaves, {dy_}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                        /*allow_unused=*/true);
}

void Work::step() {
  optimiser_->zero_grad();
  const auto logits = forward(input_, sequences_);
  torch::nn::functional::cross_entropy(logits.to(at::kFloat), targets_).backward();
  if (numbers_.is_cpu()) {
    optimiser_->step(kLearningRate);
  } else {
    optimiser_->step(numbers_);
  }
}

int64_t Work::parameter_bytes() const {
  int64_t bytes = 0;
  for (const auto& parameter : model_.module->parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

int64_t Work::prepared_gradient_bytes(Pass pass) const {
  return pass == Pass::forward_backward && dy_.defined() ? static_cast<int64_t>(dy_.nbytes()) : 0;
}

void Work::forget_gradients() {
  if (optimiser_) {
    optimiser_->zero_grad();
  }
}

Work::Values Work::evaluate(const at::Tensor& input, const at::Tensor& dy) {
  const MethodScope scope(method_);
  model_.module->eval();
  const auto sequences = Sequences::dense(input.size(0), input.size(1), input.device());
  if (!dy.defined()) {
    const torch::NoGradGuard no_grad;
    return {forward(input, sequences), {}};
  }
  auto leaves = model_.module->parameters();
  auto x = input.detach();
  if (x.is_floating_point()) {
    x.requires_grad_();
    leaves.insert(leaves.begin(), x);
  }
  const auto y = forward(x, sequences);
  auto gradients = torch::autograd::grad({y}, leaves, {dy.to(y.scalar_type())}, /*retain_graph=*/std::nullopt,
                                         /*create_graph=*/false, /*allow_unused=*/true);
  return {y.detach(), std::move(gradients)};
}

}  // namespace dba::bench
