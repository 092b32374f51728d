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
/// Parameters without a gradient are left alone. On a GPU Adam is one fused kernel; it rounds a little differently.
class Optimiser {
 public:
  explicit Optimiser(Parameters parameters);
  virtual ~Optimiser() = default;

  /// One update with this learning rate.
  void step(double lr);
  void zero_grad();

  /// The same update in two parts, for steps that are recorded and repeated: what changes from update to update is
  /// worked out on the host, in numbers that travel to the device; the rest reads them there.
  std::vector<double> next_numbers(double lr);
  /// numbers: those of next_numbers as a tensor (k) double on the parameters' device.
  void step(const at::Tensor& numbers);
  /// Whether all later updates send the same work to the device as the next one.
  virtual bool settled() const {
    return true;
  }

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
  virtual std::vector<double> numbers(double lr, double t) const = 0;
  /// numbers: (k) float32.
  virtual void apply(Group& group, const at::Tensor& numbers) = 0;

 private:
  Group group() const;

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
