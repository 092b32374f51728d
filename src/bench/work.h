#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "bench/settings.h"
#include "dba/sequences.h"
#include "dba/train/optimiser.h"

namespace dba::bench {

/// A module and how it is called.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& input, const Sequences& sequences)> forward;
};

/// With weights drawn from torch's default generator. `length`: the longest sequence, for learned positions.
Model make_model(Kind kind, const Method& method, const Sizes& sizes, int64_t length);

/// What goes in: tokens (B, n, d), or symbols (B, n) for a train_step. Wide tokens make peaked attention: over flat
/// weights every sum of tokens is near zero, and a wrong one would not show.
at::Tensor make_input(Kind kind, const Case& one, const Sizes& sizes, at::Device device);

/// One method at one case, ready to be called.
class Work {
 public:
  Work(const Settings& settings, const Method& method, const Case& one);
  /// The same weights, in another precision and by another method that has the same ones.
  Work(const Work& other, const Method& method, Precision precision);

  /// The calls that are measured.
  void run(Pass pass);
  /// Bytes of dY: a training step would make it, here it stands before the call.
  int64_t prepared_gradient_bytes(Pass pass) const;
  int64_t parameter_bytes() const;
  /// Lets go of gradients, so that the next call starts as in training.
  void forget_gradients();

  struct Values {
    at::Tensor y;
    std::vector<at::Tensor> gradients;  ///< of the input, if it is differentiable, and of every parameter
  };
  /// Without dropout. dy: the gradient of y, or undefined for values alone.
  Values evaluate(const at::Tensor& input, const at::Tensor& dy);

  const at::Tensor& input() const {
    return input_;
  }
  const Method& method() const {
    return method_;
  }

 private:
  at::Tensor forward(const at::Tensor& input, const Sequences& sequences);
  void forward_backward();
  void step();

  Kind kind_;
  Sizes sizes_;
  Method method_;
  Precision precision_;
  int64_t length_;
  Model model_;
  at::Tensor input_;
  Sequences sequences_;
  at::Tensor dy_;
  at::Tensor targets_;
  std::unique_ptr<train::Optimiser> optimiser_;
  at::Tensor numbers_;  ///< of the optimiser's step
};

}  // namespace dba::bench
