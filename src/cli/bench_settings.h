#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/settings.h"

namespace dba::cli {

/// The words of a call of `dba bench`.
struct BenchArguments {
  std::vector<std::string> methods;
  std::vector<std::string> baselines;
  std::vector<std::int64_t> lengths;
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::vector<std::string> dtypes = {"float32"};
  std::vector<int> threads = {0};
  std::string device = "cpu";
  std::string passes = "both";
  std::string caches = "warm";
  std::string slots = "shared";
  bench::Sizes sizes;
  std::int64_t repeats = 20;
  double seconds = 1.0;
  std::string json;
  std::string csv;
  bool quiet = false;
};

/// The settings, and sentences on what could not be understood. What is left is measured all the same.
struct BenchSettings {
  bench::Settings settings;
  std::vector<std::string> complaints;
};

/// What the call asks for, and what is measured where it asks for nothing.
BenchSettings bench_settings(BenchArguments arguments, bench::Kind kind);

}  // namespace dba::cli
