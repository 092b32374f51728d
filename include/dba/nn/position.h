#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <string>

#include "dba/sequences.h"

namespace dba {

/// What a token learns of its place.
///   learned     one vector per position, up to a maximal length
///   sinusoidal  sin(p/10000^(2i/d)) in column 2i, the cosine in column 2i + 1; any length
///   none        nothing
enum class Position { learned, sinusoidal, none };

Position parse_position(const std::string& name);
std::string to_string(Position position);

struct PositionEmbeddingOptions {
  explicit PositionEmbeddingOptions(int64_t d) : d_(d) {}
  TORCH_ARG(int64_t, d);
  TORCH_ARG(Position, kind) = Position::learned;
  /// Positions to learn; `learned` only. Positions beyond are an error on the CPU and in debug mode; otherwise, because
  /// a check would have to wait for the GPU, tokens behind the end share the last position.
  TORCH_ARG(int64_t, max_length) = 0;
};

/// Adds to every token what its position says, counted inside its sequence unless it is given. Learned vectors are N(0,
/// 1/d) at first.
class PositionEmbeddingImpl : public torch::nn::Cloneable<PositionEmbeddingImpl> {
 public:
  explicit PositionEmbeddingImpl(PositionEmbeddingOptions options_);
  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;
  /// x (N, d). given (N): positions of the tokens, integers in [0, max_length) in the real rows and anything
  /// elsewhere, for sequences of which parts were left out; undefined: counted.
  at::Tensor forward(const at::Tensor& x, const Sequences& sequences, const at::Tensor& given = {});

  PositionEmbeddingOptions options;
  at::Tensor weight;  ///< (max_length, d), `learned` only
};
TORCH_MODULE(PositionEmbedding);

}  // namespace dba
