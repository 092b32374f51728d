#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "dba/train/optimiser.h"

/// From gradients to weights.
namespace dba::train {
namespace {

/// A little problem with two parameters, and the same once more for the optimiser to compare with.
struct Problem {
  at::Tensor weight = torch::arange(6, at::kDouble).view({2, 3}).div(7).requires_grad_();
  at::Tensor bias = torch::tensor({0.3, -0.2}, at::kDouble).requires_grad_();

  void backward() const {
    const auto x = torch::tensor({0.5, -1.0, 2.0}, at::kDouble);
    const auto y = torch::matmul(weight, x) + bias;
    (y.sin().sum() + y.square().sum()).backward();
  }
  Parameters parameters() const {
    return {{"weight", weight}, {"bias", bias}};
  }
};

config::OptimiserConfig optimiser_config(const std::string& name) {
  config::OptimiserConfig config;
  config.name = name;
  config.lr = 0.05;
  config.weight_decay = 0.1;
  return config;
}

template <class Reference>
void expect_equal_to(const std::string& name, const typename std::function<Reference(std::vector<at::Tensor>)>& make) {
  const Problem own, theirs;
  const auto config = optimiser_config(name);
  const auto optimiser = make_optimiser(config, own.parameters());
  auto reference = make({theirs.weight, theirs.bias});
  for (int update = 0; update < 12; ++update) {
    optimiser->zero_grad();
    own.backward();
    optimiser->step(config.lr);
    reference.zero_grad();
    theirs.backward();
    reference.step();
  }
  EXPECT_TRUE(torch::allclose(own.weight, theirs.weight, 1e-12, 1e-14)) << name;
  EXPECT_TRUE(torch::allclose(own.bias, theirs.bias, 1e-12, 1e-14)) << name;
}

TEST(Optimisers, EqualLibTorchsWhereItHasThem) {
  const auto c = optimiser_config("any");
  const auto betas = std::make_tuple(c.betas[0], c.betas[1]);
  expect_equal_to<torch::optim::AdamW>("adamw", [&](std::vector<at::Tensor> p) {
    return torch::optim::AdamW(p,
                               torch::optim::AdamWOptions(c.lr).betas(betas).eps(c.eps).weight_decay(c.weight_decay));
  });
  expect_equal_to<torch::optim::Adam>("adam", [&](std::vector<at::Tensor> p) {
    return torch::optim::Adam(p, torch::optim::AdamOptions(c.lr).betas(betas).eps(c.eps).weight_decay(c.weight_decay));
  });
  expect_equal_to<torch::optim::SGD>("sgd", [&](std::vector<at::Tensor> p) {
    return torch::optim::SGD(p, torch::optim::SGDOptions(c.lr).momentum(c.momentum).weight_decay(c.weight_decay));
  });
}

// The rule written out for one number.
TEST(Optimisers, RectifiedAdamFollowsItsRule) {
  auto config = optimiser_config("radam");
  config.betas = {0.9, 0.999};
  const auto parameter = torch::tensor({1.0}, at::kDouble).requires_grad_();
  const auto optimiser = make_optimiser(config, {{"p", parameter}});
  double p = 1.0, m = 0.0, v = 0.0;
  bool plain = false, rectified = false;
  for (int t = 1; t <= 12; ++t) {
    optimiser->zero_grad();
    (parameter * parameter * parameter).sum().backward();
    optimiser->step(config.lr);
    const double g = 3 * p * p;
    p -= config.lr * config.weight_decay * p;
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const double b = std::pow(0.999, t), rho_inf = 1999.0, rho = rho_inf - 2 * t * b / (1 - b);
    const double step = config.lr / (1 - std::pow(0.9, t));
    if (rho >= 5) {
      const double r = std::sqrt((1 - b) * (rho - 4) / (rho_inf - 4) * (rho - 2) / rho * rho_inf / (rho_inf - 2));
      p -= step * r * m / (std::sqrt(v) + config.eps);
      rectified = true;
    } else {
      p -= step * m;
      plain = true;
    }
    ASSERT_NEAR(parameter.item<double>(), p, 1e-12) << "update " << t;
  }
  EXPECT_TRUE(plain && rectified);
}

TEST(Optimisers, LeaveParametersWithoutGradientAlone) {
  const Problem problem;
  const auto optimiser = make_optimiser(optimiser_config("adamw"), problem.parameters());
  problem.weight.mutable_grad() = torch::ones_like(problem.weight);
  const auto before = problem.bias.detach().clone();
  optimiser->step(0.1);
  EXPECT_TRUE(torch::equal(problem.bias, before));
}

TEST(Optimisers, TakeTheirNumbersFromATensor) {
  for (const auto* name : {"adamw", "adam", "radam", "sgd"}) {
    config::OptimiserConfig config;
    config.name = name;
    config.weight_decay = 0.1;
    config.betas = {0.9, 0.999};
    const auto start = torch::linspace(-1, 1, 12).view({3, 4});
    const auto plain = start.clone().requires_grad_(), by_tensor = start.clone().requires_grad_();
    const auto one = make_optimiser(config, {{"p", plain}}), other = make_optimiser(config, {{"p", by_tensor}});
    for (int update = 1; update <= 12; ++update) {
      for (const auto& [optimiser, parameter] : {std::pair(one.get(), plain), std::pair(other.get(), by_tensor)}) {
        optimiser->zero_grad();
        (parameter.sin() * parameter).sum().backward();
      }
      const auto lr = 0.05 / update;
      one->step(lr);
      other->step(torch::tensor(other->next_numbers(lr), at::kDouble));
      ASSERT_LT((plain - by_tensor).abs().max().item<double>(), 2e-6) << name << ", update " << update;
    }
    EXPECT_EQ(one->updates(), other->updates());
    EXPECT_GT((plain - start).abs().max().item<double>(), 1e-2);
  }
}

TEST(Optimisers, SayFromWhichUpdateOnTheirWorkIsTheSame) {
  config::OptimiserConfig config;
  config.name = "radam";
  config.betas = {0.9, 0.999};
  const auto optimiser = make_optimiser(config, {{"p", torch::ones({1}).requires_grad_()}});
  EXPECT_FALSE(optimiser->settled());
  optimiser->set_updates(5);
  EXPECT_TRUE(optimiser->settled());
  config.name = "adamw";
  EXPECT_TRUE(make_optimiser(config, {})->settled());
}

TEST(Clipping, ScalesTheCommonNormAndLeavesSmallOnesAlone) {
  const Problem problem;
  problem.backward();
  const auto norm = [&] {
    return std::sqrt(problem.weight.grad().square().sum().item<double>() +
                     problem.bias.grad().square().sum().item<double>());
  };
  const auto before = norm();
  EXPECT_NEAR(clip_gradients(problem.parameters(), 0.5).item<double>(), before, 1e-12);
  EXPECT_NEAR(norm(), 0.5, 1e-5);
  const auto kept = problem.weight.grad().clone();
  clip_gradients(problem.parameters(), 10.0);
  EXPECT_TRUE(torch::equal(problem.weight.grad(), kept));
}

}  // namespace
}  // namespace dba::train
