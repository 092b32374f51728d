#include "bench/counts.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dba::bench {
namespace {

/// Sizes as real numbers: products of them outgrow integers.
struct Numbers {
  Numbers(const Sizes& sizes, const Case& one)
      : d(static_cast<double>(sizes.d)),
        d_p(static_cast<double>(sizes.d_p)),
        slots(static_cast<double>(sizes.heads * sizes.d_p)),
        heads(static_cast<double>(sizes.heads)),
        e(std::ceil(static_cast<double>(sizes.d_in) / heads)),
        n(static_cast<double>(one.length)),
        batch(static_cast<double>(one.batch)),
        tokens(n * batch),
        element(static_cast<double>(c10::elementSize(compute_type(one.precision)))) {}
  double d, d_p, slots, heads, e, n, batch, tokens, element;
};

/// Multiply-adds and bytes of one attention layer.
struct Layer {
  double multiply_adds = 0.0;
  double bytes = 0.0;
};

bool softmax_with_map(const Method& method) {
  // scaled_dot_product_attention streams, but for its back end `math`.
  return method.sdpa == Sdpa::math || (!method.is_dba() && method.attention != "softmax" && !method.sub_quadratic());
}

/// The small middle on d_p rows of every sequence: fold, projections of the summaries, width compression, P', W_O.
double core_multiply_adds(const Numbers& s, bool released) {
  const double between_slots = s.slots * s.d_p * s.e + s.slots * s.d_p * s.d / s.heads;
  if (released) {
    const double inner = s.heads * s.e;
    return s.d_p * (2 * s.d * inner + 2 * s.d * inner + 3 * s.d * s.d) + between_slots;
  }
  return s.d_p * (6 * s.d * s.d + 2 * s.d * s.e) + between_slots;
}

Layer two_pass(const Numbers& s, bool released, bool backward) {
  const double rows = released ? s.slots : 3 * s.slots;
  const double summaries = s.batch * (rows + s.slots) * s.d * 4;
  Layer layer;
  // compress: scores and weighted sums; restore: scores and the product with M.
  layer.multiply_adds = s.tokens * s.d * (2 * rows + 2 * s.slots) + s.batch * core_multiply_adds(s, released);
  layer.bytes = 3 * s.tokens * s.d * s.element + 2 * summaries;
  if (backward) {
    // restore: U twice, dM, dU, its share of dX, dF; compress: W, dC Xᵀ, two shares of dX, dA.
    layer.multiply_adds += s.tokens * s.d * (6 * s.slots + 5 * rows) + 2 * s.batch * core_multiply_adds(s, released);
    layer.bytes += 5 * s.tokens * s.d * s.element + 4 * summaries;
  }
  return layer;
}

Layer direct(const Numbers& s, bool released, bool backward) {
  const double inner = s.heads * s.e;
  const double widths = released ? s.d + inner + s.slots : 3 * s.d + 2 * s.slots;  // of what is projected from X
  const double maps = released ? 2 * s.slots : 4 * s.slots;                        // of the weights per token
  const double sums = released ? s.d_p * (inner + 2 * s.d) : 6 * s.d_p * s.d;
  Layer layer;
  layer.multiply_adds = s.tokens * (s.d * (widths + s.d) + sums) + s.batch * core_multiply_adds(s, released);
  layer.bytes = s.tokens * s.element * (s.d + 2 * widths + 2 * maps + 3 * s.d);
  if (backward) {
    layer.multiply_adds *= 3;
    layer.bytes *= 3;
  }
  return layer;
}

Layer softmax(const Numbers& s, bool with_map, bool backward) {
  Layer layer;
  // Backward of the streaming kernels takes the scores again: five products of n × n against two.
  const double map = 2 * s.n * s.d;
  layer.multiply_adds = s.tokens * (4 * s.d * s.d + map);
  layer.bytes = s.tokens * s.element * 10 * s.d + (with_map ? 4 * s.batch * s.heads * s.n * s.n * s.element : 0);
  if (backward) {
    layer.multiply_adds += s.tokens * (8 * s.d * s.d + (with_map ? 2.0 : 2.5) * map);
    layer.bytes *= 3;
  }
  return layer;
}

/// The tiles of scores that the reference of the two passes holds: a share of all tokens at a time.
double reference_tiles(const Method& method, const Numbers& s, bool backward, at::Device device) {
  const double rows = method.form == Form::released ? s.slots : 3 * s.slots;
  const double numbers_in_tile = device.is_cpu() ? 0x1p19 : 0x1p25;
  const double tokens = std::min(s.tokens, numbers_in_tile / std::max(s.d, rows));
  const double accumulator = std::max(s.element, 4.0);
  return tokens * accumulator * (backward ? 4 * rows + 3 * s.slots + 2 * s.d : 3 * rows + s.d);
}

/// What one layer's attention holds at its peak, beyond its input.
double attention_memory(const Method& method, const Numbers& s, bool backward, at::Device device) {
  const double of_token_width = s.tokens * s.d * s.element;
  if (method.is_dba()) {
    const double summaries = (backward ? 3 : 1) * s.batch * 4 * s.slots * s.d * std::max(s.element, 4.0);
    if (method.order == Order::direct) {
      return summaries + (backward ? 2.5 : 1) * s.tokens * s.element * (5 * s.d + 8 * s.slots);
    }
    // Y, then dY and dX; the fused kernels need little beside.
    const double tiles = method.backend == Backend::fused ? 0 : reference_tiles(method, s, backward, device);
    return summaries + (backward ? 4 : 2) * of_token_width + tiles;
  }
  const double map = softmax_with_map(method) ? s.batch * s.heads * s.n * s.n * s.element : 0;
  // Others keep blocks, features or hashes beside their projections.
  const double beside = method.attention == "softmax" ? 1 : 3;
  return beside * (backward ? 12 : 6) * of_token_width + (backward ? 4 : 3) * map;
}

}  // namespace

Cost cost_of(Kind kind, const Method& method, const Sizes& sizes, const Case& one, Pass pass, at::Device device) {
  const Numbers s(sizes, one);
  const bool backward = pass != Pass::forward;
  const bool released = method.form == Form::released;
  Layer layer;
  if (method.is_dba()) {
    layer = method.order == Order::direct ? direct(s, released, backward) : two_pass(s, released, backward);
  } else if (method.attention == "softmax") {
    layer = softmax(s, softmax_with_map(method), backward);
  } else {
    layer = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  Cost cost{2 * layer.multiply_adds, layer.bytes, attention_memory(method, s, backward, device)};
  if (backward) {
    cost.memory += s.element * s.d * (8 * s.d + 3 * s.slots);  // gradients of the parameters, about
  }
  if (kind != Kind::layer) {
    const auto d_ffn = static_cast<double>(sizes.d_ffn);
    const auto depth = static_cast<double>(sizes.depth);
    const double passes = backward ? 3 : 1;
    cost.operations = depth * (cost.operations + passes * 4 * s.tokens * s.d * d_ffn);
    // The network and two norms with residuals: hidden numbers written and read, before and after the activation.
    cost.bytes = depth * (cost.bytes + passes * s.tokens * s.element * (8 * s.d + 4 * d_ffn));
    const double kept = s.tokens * s.element * (6 * s.d + 3 * d_ffn);
    cost.memory = backward ? depth * (cost.memory + kept + 3 * s.element * s.d * d_ffn) : cost.memory + kept;
  }
  return cost;
}

}  // namespace dba::bench
