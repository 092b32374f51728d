#include "ops/cpu/kernels.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace dba::ops::cpu {
namespace {

InstructionSet from_environment() {
  const char* const name = std::getenv("DBA_CPU");
  const auto best = best_instruction_set();
  if (name == nullptr) {
    return best;
  }
  const std::string wanted = name;
  TORCH_CHECK(wanted == "baseline" || wanted == "avx2" || wanted == "avx512",
              "DBA_CPU must be baseline, avx2 or avx512, got \"", wanted, "\"");
  const auto set = wanted == "baseline" ? InstructionSet::baseline
                   : wanted == "avx2"   ? InstructionSet::avx2
                                        : InstructionSet::avx512;
  return set < best ? set : best;
}

std::atomic<InstructionSet>& chosen() {
  static std::atomic<InstructionSet> set{from_environment()};
  return set;
}

}  // namespace

InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  // The processor is asked first: even asking for a table runs code compiled for its set.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && avx512_kernels<float>() != nullptr) {
    return InstructionSet::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && avx2_kernels<float>() != nullptr) {
    return InstructionSet::avx2;
  }
#endif
  return InstructionSet::baseline;
}

InstructionSet instruction_set() {
  return chosen().load();
}

void set_instruction_set(InstructionSet set) {
  const auto best = best_instruction_set();
  chosen().store(set < best ? set : best);
}

template <class T>
const Kernels<T>& kernels() {
  switch (instruction_set()) {
    case InstructionSet::avx512:
      return *avx512_kernels<T>();
    case InstructionSet::avx2:
      return *avx2_kernels<T>();
    default:
      return *baseline_kernels<T>();
  }
}

template const Kernels<float>& kernels();
template const Kernels<double>& kernels();

}  // namespace dba::ops::cpu
