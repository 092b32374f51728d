/// Compiled with the flags of its instruction set; without them the table is absent.
#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define DBA_ISA avx512
#include "ops/cpu/isa/table.h"
#else
#include "ops/cpu/kernels.h"
#endif

namespace dba::ops::cpu {

template <class T>
const Kernels<T>* avx512_kernels() {
#ifdef DBA_ISA
  return avx512::table<T>("avx512");
#else
  return nullptr;
#endif
}

template const Kernels<float>* avx512_kernels();
template const Kernels<double>* avx512_kernels();

}  // namespace dba::ops::cpu
