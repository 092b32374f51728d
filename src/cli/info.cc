#include "cli/info.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "bytes/count.h"
#include "cli/build.h"
#include "cli/cuda_driver.h"
#include "dba/backend.h"

namespace dba::cli {
namespace {

using Json = nlohmann::ordered_json;

Json text_or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json cpu_features() {
  Json features = Json::array();
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2"))
    features.push_back("avx2");
  if (__builtin_cpu_supports("fma"))
    features.push_back("fma");
  if (__builtin_cpu_supports("avx512f"))
    features.push_back("avx512f");
  if (__builtin_cpu_supports("avx512bw"))
    features.push_back("avx512bw");
  if (__builtin_cpu_supports("avx512vnni"))
    features.push_back("avx512vnni");
  if (__builtin_cpu_supports("avx512bf16"))
    features.push_back("avx512bf16");
#elif defined(__aarch64__)
  features.push_back("neon");
#endif
  return features;
}

Json describe_cuda(const Build& built) {
  const bool usable = at::globalContext().hasCUDA();
  const CudaDriver driver = ask_cuda_driver();
  Json devices = Json::array();
  for (const CudaDevice& device : driver.devices) {
    devices.push_back({{"name", device.name},
                       {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
                       {"memory_bytes", device.memory_bytes}});
  }
  const bool torch_has_cuda = at::detail::getCUDAHooks().hasCUDART();
  return {{"torch_built_with", text_or_null(built.torch_cuda)},
          {"kernels_built_with", text_or_null(built.kernels_cuda)},
          {"runtime",
           torch_has_cuda ? text_or_null(cuda_version_text(at::detail::getCUDAHooks().versionCUDART())) : Json()},
          {"driver", text_or_null(driver.version)},
          {"usable", usable},
          {"devices", devices}};
}

Json describe() {
  const Build built = build();
  return {{"version", built.version},
          {"commit", built.commit},
          {"compiler", built.compiler},
          {"torch", TORCH_VERSION},
          {"backend", to_string(backend())},
          {"cpu",
           {{"features", cpu_features()},
            {"torch_capability", at::get_cpu_capability()},
            {"processors", std::thread::hardware_concurrency()},
            {"threads", at::get_num_threads()}}},
          {"cuda", describe_cuda(built)}};
}

std::string joined(const Json& words) {
  std::string line;
  for (const auto& word : words) {
    line += (line.empty() ? "" : " ") + word.get<std::string>();
  }
  return line.empty() ? "none" : line;
}

std::string or_none(const Json& value) {
  return value.is_null() ? "none" : value.get<std::string>();
}

void print(const Json& info) {
  const Json& cpu = info["cpu"];
  const Json& cuda = info["cuda"];
  std::cout << "dba       " << info["version"].get<std::string>() << " (" << info["commit"].get<std::string>() << ")\n"
            << "compiler  " << info["compiler"].get<std::string>() << "\n"
            << "torch     " << info["torch"].get<std::string>() << "\n"
            << "backend   " << info["backend"].get<std::string>() << "\n"
            << "CPU       " << joined(cpu["features"]) << "; torch uses " << cpu["torch_capability"].get<std::string>()
            << "\n"
            << "threads   " << cpu["threads"] << " of "
            << bytes::counted(cpu["processors"].get<unsigned>(), "processor") << "\n"
            << "CUDA      torch built with " << or_none(cuda["torch_built_with"]) << ", own kernels built with "
            << or_none(cuda["kernels_built_with"]) << ", runtime " << or_none(cuda["runtime"]) << ", driver "
            << or_none(cuda["driver"]) << "\n"
            << "devices   cpu";
  size_t index = 0;
  for (const Json& device : cuda["devices"]) {
    std::cout << "\n          cuda:" << index++ << "  " << device["name"].get<std::string>() << ", compute capability "
              << device["compute_capability"].get<std::string>() << ", "
              << device["memory_bytes"].get<uint64_t>() / (1u << 30) << " GiB";
  }
  std::cout << (cuda["devices"].empty() || cuda["usable"].get<bool>() ? "" : " (torch cannot use them)") << "\n";
}

}  // namespace

void add_info(CLI::App& app) {
  CLI::App* info = app.add_subcommand("info", "Version, commit, compiler, torch, CUDA, CPU features, threads, devices");
  auto as_json = std::make_shared<bool>(false);
  info->add_flag("--json", *as_json, "Print one JSON object instead of lines");
  info->footer("Examples:\n  dba info\n  dba info --json");
  info->callback([as_json] {
    const Json info = describe();
    if (*as_json) {
      std::cout << info.dump(2) << "\n";
    } else {
      print(info);
    }
  });
}

}  // namespace dba::cli
