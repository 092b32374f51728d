#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <string>

#include "dba/nn/dba_attention.h"

namespace dba::plan {

/// All that the cost of one self-attention layer depends on.
struct Shape {
  int64_t tokens = 0;    ///< N, over all sequences
  int64_t batch = 0;     ///< B
  int64_t longest = -1;  ///< the longest sequence, padding included; −1: the host does not know
  int64_t d = 256;
  int64_t heads = 4;
  int64_t d_p = 16;
  int64_t e = 6;  ///< width of a head's compressed queries and keys
  Form form = Form::paper;
  Normalise normalise = Normalise::softmax;
  bool slots_per_sequence = false;  ///< every sequence has its own Z
  at::ScalarType dtype = at::kFloat;
  at::DeviceType device = at::kCPU;
  bool autocast = false;
  bool training = false;  ///< forward and backward
  double dropout = 0.0;
  int64_t threads = 2;  ///< of a CPU, which the constants were measured with

  /// The longest sequence, or the mean where it is not known.
  int64_t length() const;
};

/// A shape by which the planner is measured or fitted.
struct MeasuredSizes {
  int64_t length, batch, d, heads, d_p, d_in;
  Form form;
};

/// Forward alone, then training. A GPU gets sixteen times as many sequences, because it wants more to do.
std::array<Shape, 2> measured_shapes(const MeasuredSizes& sizes, at::DeviceType device, at::ScalarType dtype);

/// A way to compute the layer.
///   fused      the two streaming passes in fused kernels
///   projected  queries and keys first, then attention with Z as the queries (Order::projected)
///   reference  the two passes in plain ATen
///   direct     the equations as written (Order::direct)
enum class Candidate { fused, projected, reference, direct };

inline constexpr std::array kCandidates = {Candidate::fused, Candidate::projected, Candidate::reference,
                                           Candidate::direct};

std::string to_string(Candidate candidate);
/// What gives the candidate: order and, for the two passes, backend.
Order order_of(Candidate candidate);

}  // namespace dba::plan
