#include "cli/build.h"

#include "dba/version.h"

namespace dba::cli {

Build build() {
#if defined(__clang__)
  const std::string compiler = std::string("clang ") + __clang_version__;
#else
  const std::string compiler = std::string("g++ ") + __VERSION__;
#endif
  return {DBA_VERSION, DBA_COMMIT, compiler, DBA_TORCH_CUDA, DBA_KERNELS_CUDA};
}

}  // namespace dba::cli
