#define DBA_ISA baseline
#include "ops/cpu/isa/table.h"

namespace dba::ops::cpu {

template <class T>
const Kernels<T>* baseline_kernels() {
  return baseline::table<T>("baseline");
}

template const Kernels<float>* baseline_kernels();
template const Kernels<double>* baseline_kernels();

}  // namespace dba::ops::cpu
