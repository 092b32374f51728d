/// Compiled with the flags of its instruction set; without them the table is absent.
#if defined(__AVX2__) && defined(__FMA__)
#define DBA_ISA avx2
#include "ops/cpu/isa/table.h"
#else
#include "ops/cpu/kernels.h"
#endif

namespace dba::ops::cpu {

template <class T>
const Kernels<T>* avx2_kernels() {
#ifdef DBA_ISA
  return avx2::table<T>("avx2");
#else
  return nullptr;
#endif
}

template const Kernels<float>* avx2_kernels();
template const Kernels<double>* avx2_kernels();

}  // namespace dba::ops::cpu
