#include "ops/fused.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "dba/backend.h"

namespace dba::ops {
namespace {

GpuObstacle obstacle_of_gpu = nullptr;

bool debug_log_wanted() {
  static const bool wanted = [] {
    const char* level = std::getenv("DBA_LOG");
    return level != nullptr && std::string_view(level) == "debug";
  }();
  return wanted;
}

}  // namespace

void log_choice(const std::string& message) {
  if (!debug_log_wanted()) {
    return;
  }
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (said.insert(message).second) {
    std::fprintf(stderr, "dba: %s\n", message.c_str());
  }
}

bool use_fused(const char* function, const std::string& obstacle) {
  switch (backend()) {
    case Backend::reference:
      return false;
    case Backend::fused:
      TORCH_CHECK(obstacle.empty(), "dba::", function, ": backend is fused, but ", obstacle,
                  "; change the shape or type, or use backend auto, which then takes the reference");
      return true;
    case Backend::automatic:
      break;
  }
  if (!obstacle.empty()) {
    log_choice(std::string(function) + ": the reference, because " + obstacle);
  }
  return obstacle.empty();
}

GpuObstacle set_gpu_obstacle(GpuObstacle obstacle) {
  return std::exchange(obstacle_of_gpu, obstacle);
}

std::string gpu_obstacle() {
  return obstacle_of_gpu == nullptr ? std::string() : obstacle_of_gpu();
}

bool use_fused_on_gpu(const char* function, const std::string& obstacle) {
  if (backend() == Backend::automatic && cuda_kernels() == CudaKernels::off) {
    log_choice(std::string(function) +
               ": the reference, because fused CUDA kernels are off (DBA_CUDA_KERNELS=auto takes them)");
    return false;
  }
  const bool settled = backend() == Backend::reference || !obstacle.empty();
  const auto of_gpu = settled ? std::string() : gpu_obstacle();
  if (!of_gpu.empty() && backend() == Backend::automatic) {
    TORCH_WARN_ONCE("dba: plain PyTorch operators serve, which are several times slower, because ", of_gpu);
  }
  return use_fused(function, settled ? obstacle : of_gpu);
}

}  // namespace dba::ops
