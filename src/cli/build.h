#pragma once

#include <string>

namespace dba::cli {

/// What this program was built from and with. In a file of its own because the commit changes with every build.
struct Build {
  std::string version;
  std::string commit;
  std::string compiler;
  std::string torch_cuda;    ///< the CUDA version of the torch wheel; empty for a CPU wheel
  std::string kernels_cuda;  ///< nvcc and architectures of libdba_cuda; empty where it was not built
};

Build build();

}  // namespace dba::cli
