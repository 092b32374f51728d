#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dba/config/train_config.h"

namespace dba::train {

using Parameters = std::vector<std::pair<std::string, at::Tensor>>;

/// Changes parameters by their gradients. All arithmetic stays on the parameters' device and waits for nothing.
/// Parameters without a gradient are left alone.
class Optimiser {
 public:
  explicit Optimiser(Parameters parameters);
  virtual ~Optimiser() = default;

  /// One update with this learning rate.
  void step(double lr);
  void zero_grad();

  /// Names and tensors of the state, fixed from the start; together with updates() all that a resume needs.
  const Parameters& state() const {
    return state_;
  }
  std::int64_t updates() const {
    return updates_;
  }
  void set_updates(std::int64_t updates) {
    updates_ = updates;
  }
  const Parameters& parameters() const {
    return parameters_;
  }

 protected:
  /// A state tensor per parameter, zero at first.
  void add_state(const std::string& name);
  struct Group {
    std::vector<at::Tensor> parameters, gradients;
    std::vector<std::vector<at::Tensor>> states;  ///< per name of add_state
  };
  /// t is the number of this update, from 1.
  virtual void apply(Group& group, double lr, double t) = 0;

 private:
  Parameters parameters_;
  Parameters state_;
  std::size_t states_per_parameter_ = 0;
  std::int64_t updates_ = 0;
};

/// By the name in the configuration:
///   adamw  Adam with decoupled weight decay, p ← p − lr·wd·p
///   adam   Adam with the decay added to the gradient
///   radam  rectified Adam with decoupled decay: while ρ_t < 5, p ← p − lr·m/(1 − β₁ᵗ)
///   sgd    momentum, with the decay added to the gradient
std::unique_ptr<Optimiser> make_optimiser(const config::OptimiserConfig& config, Parameters parameters);

/// Scales the gradients so that their common norm is at most `limit`, without reading the norm on the host.
/// Returns the norm before, a scalar on the device.
at::Tensor clip_gradients(const Parameters& parameters, double limit);

}  // namespace dba::train
