#pragma once

#include <array>
#include <string>

#include "plan/shape.h"

namespace dba::plan {

/// What does a piece of work.
///   passes             the streaming kernels, forward
///   backward_passes    the same, backward
///   core               the fused middle between them, on d_p rows of every sequence, forward
///   backward_core      the same, backward
///   plain              ATen's products and elementwise operations
///   softmax_attention  scaled_dot_product_attention, for the comparison with softmax attention
enum class Engine { passes, backward_passes, core, backward_core, plain, softmax_attention };

inline constexpr std::size_t kEngines = 6;
inline constexpr std::array<const char*, kEngines> kEngineNames = {
    "passes", "backward_passes", "core", "backward_core", "plain", "softmax_attention"};

/// The units that work is counted in, and what each costs.
///   operations    of matrix products, two per multiply-add
///   exponentials  entries of weights: exp, maximum and sum
///   bytes         memory traffic
///   calls         operators called, or kernels launched
///   sequences     what a sequence costs beyond its tokens
inline constexpr std::size_t kUnits = 5;
inline constexpr std::array<const char*, kUnits> kUnitNames = {"operations", "exponentials", "bytes", "calls",
                                                               "sequences"};

/// A number for every unit: counts, or seconds per unit.
using Units = std::array<double, kUnits>;
using Tally = std::array<Units, kEngines>;

/// Seconds per unit, for one device and type.
struct Constants {
  Tally seconds{};
  bool calibrated = false;  ///< measured on this machine, or a default

  double time_of(const Tally& counts) const;
};

/// Of a CPU, in the default constants.
inline constexpr int64_t kDefaultThreads = 2;

/// Sane figures for a machine that nobody has measured: two CPU cores with AVX-512, one H200.
Constants default_constants(at::DeviceType device, at::ScalarType dtype);

/// Those of the calibration file where it has some, else the defaults. The file is read once, at the first call; one
/// that cannot be used is told once as a warning and passed over.
const Constants& constants_for(at::DeviceType device, at::ScalarType dtype);
/// Reads the file anew at the next call.
void forget_constants();

}  // namespace dba::plan
