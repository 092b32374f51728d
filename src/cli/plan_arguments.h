#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/precision.h"

namespace dba::cli {

/// The words of a call of `dba plan`.
struct PlanArguments {
  std::int64_t length = 0;
  std::vector<std::int64_t> lengths;
  std::int64_t batch = 1;
  std::int64_t d = 256, heads = 4, d_p = 16, d_in = 24;
  std::string form = "paper";
  std::string normalise = "softmax";
  std::string slots = "shared";
  std::string dtype = "float32";
  std::string device = "cpu";
  std::string pass = "forward";
  double dropout = 0.0;
  int threads = 0;
  double seconds = 0.0;
  bool measure = false;
  bool calibrate = false;
  bool grid = false;
  std::string json;
  bool quiet = false;
};

/// --device, if it is there.
at::DeviceType plan_device(const PlanArguments& arguments);
/// --dtype.
bench::Precision plan_precision(const PlanArguments& arguments);

/// Text for people unless JSON takes its place on standard output; JSON where it was asked for.
void print_plan(const PlanArguments& arguments, const std::string& text, const std::string& json);

/// Whether a signal asks for the end.
bool plan_is_stopped();
/// Ends the program with the signal's status, if one came.
void end_if_stopped();

}  // namespace dba::cli
