#include "ops/cuda/elu_plus_one.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace dba::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBytes = 16;  // that a thread reads at once
constexpr int64_t kMostBlocks = int64_t{1} << 20;

template <class T>
struct alignas(kBytes) Numbers {
  static constexpr int count = kBytes / sizeof(T);
  T of[count];
};

struct Feature {
  __device__ float operator()(float x, float) const {
    return x > 0.0f ? x + 1.0f : expf(x);  // NaN stays NaN
  }
};

struct Slope {
  __device__ float operator()(float dy, float y) const {
    return dy * (y > 1.0f ? 1.0f : y);
  }
};

/// out[i] = function(a[i], b[i]). Together: in groups, for addresses that these may begin at; then what is left of
/// them.
template <class T, class Function>
__global__ void __launch_bounds__(kThreads)
    each_kernel(T* out, const T* a, const T* b, int64_t count, bool together, Function function) {
  using Group = Numbers<T>;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t groups = together ? count / Group::count : 0;
  for (int64_t i = first; i < groups; i += step) {
    const Group left = reinterpret_cast<const Group*>(a)[i], right = reinterpret_cast<const Group*>(b)[i];
    Group result;
#pragma unroll
    for (int j = 0; j < Group::count; ++j) {
      result.of[j] = static_cast<T>(function(static_cast<float>(left.of[j]), static_cast<float>(right.of[j])));
    }
    reinterpret_cast<Group*>(out)[i] = result;
  }
  for (int64_t i = groups * Group::count + first; i < count; i += step) {
    out[i] = static_cast<T>(function(static_cast<float>(a[i]), static_cast<float>(b[i])));
  }
}

bool begins_a_group(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kBytes == 0;
}

template <class T, class Function>
cudaError_t launch(void* out, const void* a, const void* b, int64_t count, Function function, cudaStream_t stream) {
  const bool together = begins_a_group(out) && begins_a_group(a) && begins_a_group(b);
  const int64_t work = together ? std::max<int64_t>(count / Numbers<T>::count, 1) : count;
  const auto blocks = static_cast<unsigned>(std::min((work + kThreads - 1) / kThreads, kMostBlocks));
  each_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<T*>(out), static_cast<const T*>(a), static_cast<const T*>(b),
                                               count, together, function);
  return cudaGetLastError();
}

template <class Function>
cudaError_t launch(void* out, const void* a, const void* b, Element element, int64_t count, Function function,
                   cudaStream_t stream) {
  if (count == 0) {
    return cudaSuccess;
  }
  switch (element) {
    case Element::float16:
      return launch<__half>(out, a, b, count, function, stream);
    case Element::bfloat16:
      return launch<__nv_bfloat16>(out, a, b, count, function, stream);
    case Element::float32:
      return launch<float>(out, a, b, count, function, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_elu_plus_one(void* y, const void* x, Element element, int64_t count, cudaStream_t stream) {
  return launch(y, x, x, element, count, Feature(), stream);
}

cudaError_t launch_elu_plus_one_backward(void* dx, const void* dy, const void* y, Element element, int64_t count,
                                         cudaStream_t stream) {
  return launch(dx, dy, y, element, count, Slope(), stream);
}

}  // namespace dba::ops::cuda
