#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dba::cli {

struct CudaDevice {
  std::string name;
  int major = 0;  ///< compute capability
  int minor = 0;
  uint64_t memory_bytes = 0;
};

/// What the CUDA driver of this machine says of itself.
struct CudaDriver {
  std::string version;  ///< the newest CUDA version it runs, as "13.0"; empty where there is no driver
  std::vector<CudaDevice> devices;
};

/// Asks the driver library itself, so that neither CUDA headers nor a CUDA build of torch are needed.
CudaDriver ask_cuda_driver();

/// 13000 → "13.0", as the CUDA libraries number their versions; "" for 0.
std::string cuda_version_text(int64_t version);

}  // namespace dba::cli
