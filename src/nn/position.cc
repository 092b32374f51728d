#include "dba/nn/position.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/nn/init.h>

#include <cmath>

#include "nn/named_choice.h"
#include "nn/rows.h"
#include "ops/checks.h"

namespace dba {
namespace {

constexpr NamedChoice<Position> kPositions[] = {
    {"learned", Position::learned}, {"sinusoidal", Position::sinusoidal}, {"none", Position::none}};

/// (N, d) from positions (N), in the accumulation type of `type`.
at::Tensor sinusoids(const at::Tensor& position, int64_t d, at::ScalarType type) {
  const auto options = position.options().dtype(ops::accumulation_type(type));
  const auto pairs = (d + 1) / 2;
  const auto frequency = (at::arange(pairs, options) * (-2.0 * std::log(10000.0) / static_cast<double>(d))).exp();
  const auto angle = position.to(options.dtype()).unsqueeze(1) * frequency;
  // An odd width ends with a sine.
  return at::stack({angle.sin(), angle.cos()}, 2).view({position.size(0), 2 * pairs}).narrow(1, 0, d);
}

/// (N) int64, 0 in the rows of nobody.
at::Tensor given_positions(const at::Tensor& given, const Sequences& sequences) {
  TORCH_CHECK(given.dim() == 1 && given.size(0) == sequences.rows &&
                  at::isIntegralType(given.scalar_type(), /*includeBool=*/false) &&
                  given.device() == sequences.begin.device(),
              "dba::PositionEmbedding::forward: given must hold an integer for each of the ", sequences.rows,
              " rows, on the device of the sequences, got ", ops::describe(given));
  const auto position = clear_rows(given.to(at::kLong), real_rows(sequences));
  if (ops::values_can_be_checked(position) && position.numel() > 0) {
    const auto first = position.min().item<int64_t>();
    TORCH_CHECK(first >= 0, "dba::PositionEmbedding::forward: given must hold positions from 0 on, got ", first);
  }
  return position;
}

}  // namespace

Position parse_position(const std::string& name) {
  return parse_choice("parse_position", name, kPositions);
}

std::string to_string(Position position) {
  return name_of(position, kPositions);
}

PositionEmbeddingImpl::PositionEmbeddingImpl(PositionEmbeddingOptions options_) : options(std::move(options_)) {
  PositionEmbeddingImpl::reset();
}

void PositionEmbeddingImpl::reset() {
  check_positive("PositionEmbedding", "d", options.d());
  if (options.kind() != Position::learned) {
    return;
  }
  TORCH_CHECK(options.max_length() > 0, "dba::PositionEmbedding: learned positions need a positive max_length, got ",
              options.max_length(), "; give the length of the longest sequence, or use sinusoidal positions");
  weight = register_parameter("weight", at::empty({options.max_length(), options.d()}));
  reset_parameters();
}

void PositionEmbeddingImpl::reset_parameters() {
  if (options.kind() == Position::learned) {
    torch::nn::init::normal_(weight, 0.0, 1.0 / std::sqrt(static_cast<double>(options.d())));
  }
}

void PositionEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::PositionEmbedding(d=" << options.d() << ", kind=" << to_string(options.kind());
  if (options.kind() == Position::learned) {
    stream << ", max_length=" << options.max_length();
  }
  stream << ")";
}

at::Tensor PositionEmbeddingImpl::forward(const at::Tensor& x, const Sequences& sequences, const at::Tensor& given) {
  const auto rows = as_rows("PositionEmbedding::forward", "x", x, sequences, options.d());
  if (options.kind() == Position::none) {
    return rows;
  }
  // Sequences of one length share their positions: the gradient is then a plain sum over the batch.
  const bool one_length = !given.defined() && sequences.consecutive && sequences.padded_length > 0;
  const auto add = [&](const at::Tensor& embedded) {
    return (one_length ? rows.view({-1, sequences.padded_length, options.d()}) + embedded : rows + embedded)
        .view({sequences.rows, options.d()});
  };
  const auto position = given.defined() ? given_positions(given, sequences)
                        : one_length    ? at::arange(sequences.padded_length, sequences.begin.options())
                                        : sequences.position_of_row();
  if (options.kind() == Position::sinusoidal) {
    return add(sinusoids(position, options.d(), rows.scalar_type()).to(rows.scalar_type()));
  }
  if (one_length || (ops::values_can_be_checked(position) && position.numel() > 0)) {
    const auto longest = one_length ? sequences.padded_length : position.max().item<int64_t>() + 1;
    TORCH_CHECK(longest <= options.max_length(), "dba::PositionEmbedding::forward: sequences must have at most ",
                options.max_length(), " tokens (max_length), ", given.defined() ? "left-out ones included, " : "",
                "got ", longest, "; cut the sequences, enlarge max_length or use sinusoidal positions");
  }
  const auto table = weight.to(rows.scalar_type());
  return add(one_length ? table.narrow(0, 0, sequences.padded_length)
                        : at::embedding(table, position.clamp(0, options.max_length() - 1)));
}

}  // namespace dba
