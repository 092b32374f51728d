#include "train/kernel_shares.h"

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "bytes/count.h"

namespace dba::train {
namespace {

struct PartOfNames {
  const char* part;
  std::vector<const char*> names;  ///< one of them in a kernel's name
};

// The first that fits counts. Products of the attention, of the feed-forward network and of the head have the same
// kernels.
const std::vector<PartOfNames>& parts_of_names() {
  static const std::vector<PartOfNames> parts{
      {"residual, norm, activation", {"esidual", "ctivat", "layer_norm", "LayerNorm", "GammaBeta"}},
      {"attention passes", {"dba::", "flash", "fmha", "sdpa", "cudnn"}},
      {"products", {"gemm", "nvjet", "cutlass", "splitK", "cublas", "sm90_xmma"}},
      {"dropout", {"dropout"}},
      {"optimiser, clipping", {"multi_tensor", "foreach", "Fused", "LpNorm"}},
      {"batch, embedding, positions", {"embedding", "index", "Index", "searchsorted", "gather", "arange"}},
      {"copies", {"Memcpy", "Memset"}},
  };
  return parts;
}

using Timed = std::pair<std::string, double>;

std::vector<Timed> longest_first(const std::map<std::string, double>& seconds) {
  std::vector<Timed> all(seconds.begin(), seconds.end());
  std::ranges::stable_sort(all, std::greater<>(), &Timed::second);
  return all;
}

}  // namespace

std::string part_of_kernel(const std::string& kernel) {
  for (const auto& [part, names] : parts_of_names()) {
    for (const auto* name : names) {
      if (kernel.find(name) != std::string::npos) {
        return part;
      }
    }
  }
  return "sums and other elementwise work";
}

std::string kernel_table(const std::map<std::string, double>& seconds_of_kernel, std::int64_t updates) {
  constexpr std::size_t kLongest = 12, kNameLength = 100;
  std::map<std::string, double> parts;
  double sum = 0;
  for (const auto& [kernel, seconds] : seconds_of_kernel) {
    parts[part_of_kernel(kernel)] += seconds;
    sum += seconds;
  }
  std::string text = "time of the GPU's kernels in an update, over " + bytes::counted(updates, "update") +
                     " and the evaluations between them";
  const auto add = [&](const std::string& name, double seconds) {
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "\n  %9.4f ms  %5.1f %%  ", 1e3 * seconds / static_cast<double>(updates),
                  sum > 0 ? 100 * seconds / sum : 0.0);
    text += numbers + name.substr(0, kNameLength);
  };
  add("all of them", sum);
  for (const auto& [part, seconds] : longest_first(parts)) {
    add(part, seconds);
  }
  text += "\nthe longest of them";
  auto kernels = longest_first(seconds_of_kernel);
  kernels.resize(std::min(kernels.size(), kLongest));
  for (const auto& [kernel, seconds] : kernels) {
    add(kernel, seconds);
  }
  return text;
}

KernelWatch::KernelWatch() {
  using namespace torch::profiler::impl;
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
}

KernelWatch::~KernelWatch() {
  if (on_) {
    torch::autograd::profiler::disableProfiler();
  }
}

std::string KernelWatch::result(std::int64_t updates) {
  on_ = false;
  const auto profile = torch::autograd::profiler::disableProfiler();
  std::map<std::string, double> seconds;
  for (const auto& event : profile->events()) {
    if (event.deviceType() == at::kCUDA) {
      seconds[event.name()] += 1e-9 * static_cast<double>(event.durationNs());
    }
  }
  return kernel_table(seconds, updates);
}

}  // namespace dba::train
