#include "cli/bench_settings.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <stdexcept>

namespace dba::cli {

namespace {

using bench::Kind;

/// What is measured where nothing else is asked for.
void fill_defaults(BenchArguments& arguments, Kind kind, bool on_gpu) {
  if (arguments.methods.empty()) {
    arguments.methods = on_gpu
                            ? std::vector<std::string>{"softmax:flash", "softmax:cudnn", "dba", "dba:released"}
                            : std::vector<std::string>{"softmax", "dba:direct", "dba:reference", "dba", "dba:released"};
    if (kind != Kind::layer && !on_gpu) {
      arguments.methods = {"softmax", "dba:reference", "dba"};
    }
  }
  if (arguments.baselines.empty()) {
    for (const auto& method : arguments.methods) {
      if (method.rfind("softmax", 0) == 0) {
        arguments.baselines.push_back(method);
      }
    }
  }
  if (kind == Kind::train_step) {
    if (arguments.lengths.empty()) {
      arguments.lengths = {on_gpu ? 4096 : 1024};
    }
    if (arguments.batch == 0 && arguments.tokens == 0) {
      arguments.batch = on_gpu ? 32 : 2;
    }
  }
  if (arguments.lengths.empty()) {
    arguments.lengths = on_gpu ? std::vector<std::int64_t>{256, 1024, 4096, 16384, 65536}
                               : std::vector<std::int64_t>{128, 512, 1024, 4096, 16384};
  }
  if (arguments.batch == 0 && arguments.tokens == 0) {
    arguments.tokens = on_gpu ? 131072 : 8192;
  }
}

at::Device parse_device(const std::string& name) {
  at::Device device(at::kCPU);
  try {
    device = at::Device(name);
  } catch (const c10::Error&) {
    throw CLI::ValidationError("--device", "must be cpu, cuda or cuda:1, got \"" + name + "\"");
  }
  if (!device.is_cpu() && !device.is_cuda()) {
    throw CLI::ValidationError("--device", "must be cpu, cuda or cuda:1, got \"" + name + "\"");
  }
  if (device.is_cuda() && !at::globalContext().hasCUDA()) {
    throw std::runtime_error("bench: --device " + name +
                             ": torch finds no CUDA GPU that it can use; `dba info` says more");
  }
  return device;
}

std::vector<bench::Pass> parse_passes(const std::string& name) {
  if (name == "forward") {
    return {bench::Pass::forward};
  }
  if (name == "forward+backward") {
    return {bench::Pass::forward_backward};
  }
  return {bench::Pass::forward, bench::Pass::forward_backward};
}

std::vector<bench::Cache> parse_caches(const std::string& name) {
  if (name == "both") {
    return {bench::Cache::warm, bench::Cache::cold};
  }
  return {name == "cold" ? bench::Cache::cold : bench::Cache::warm};
}

}  // namespace

BenchSettings bench_settings(BenchArguments arguments, Kind kind) {
  BenchSettings result;
  auto& settings = result.settings;
  settings.device = parse_device(arguments.device);
  fill_defaults(arguments, kind, settings.device.is_cuda());
  settings.kind = kind;
  settings.sizes = arguments.sizes;
  settings.sizes.slots_per_sequence = arguments.slots == "each";
  if (settings.sizes.d % settings.sizes.heads != 0) {
    throw CLI::ValidationError("--heads", "must divide --d, got " + std::to_string(settings.sizes.heads) + " and " +
                                              std::to_string(settings.sizes.d));
  }
  settings.repeats = arguments.repeats;
  settings.seconds = arguments.seconds;
  settings.passes = kind == Kind::train_step ? std::vector{bench::Pass::step} : parse_passes(arguments.passes);
  settings.caches = parse_caches(arguments.caches);

  const auto add_method = [&](const std::string& name) {
    const auto same = [&](const bench::Method& method) { return method.name == name; };
    if (std::any_of(settings.methods.begin(), settings.methods.end(), same)) {
      return true;
    }
    try {
      settings.methods.push_back(bench::parse_method(name));
      return true;
    } catch (const std::invalid_argument& error) {
      result.complaints.emplace_back(error.what());
      return false;
    }
  };
  for (const auto& name : arguments.baselines) {
    if (add_method(name)) {
      settings.baselines.push_back(name);
    }
  }
  for (const auto& name : arguments.methods) {
    add_method(name);
  }
  std::vector<bench::Precision> precisions;
  for (const auto& name : arguments.dtypes) {
    try {
      precisions.push_back(bench::parse_precision(name));
    } catch (const std::invalid_argument& error) {
      result.complaints.emplace_back(error.what());
    }
  }
  for (const int threads : arguments.threads) {
    for (const auto precision : precisions) {
      for (const auto length : arguments.lengths) {
        const auto batch = arguments.batch > 0 ? arguments.batch : std::max<std::int64_t>(1, arguments.tokens / length);
        settings.cases.push_back({length, batch, precision, threads > 0 ? threads : at::get_num_threads()});
      }
    }
  }
  return result;
}

}  // namespace dba::cli
