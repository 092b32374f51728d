#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

/// For tests that DBA_TEST_WITH_CUDA_HEADERS builds with CUDA's headers.
namespace dba::test {

/// How many kernels `work` launches on the current stream. It runs once, so that what happens the first time only has
/// happened, and is recorded the second time; what a recording allocates comes from PyTorch's memory as ever.
inline int64_t kernels_launched(const std::function<void()>& work) {
  c10::cuda::device_synchronize();  // streams of the pool do not wait for the default one
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  work();
  const cudaStream_t stream = guard.current_stream().stream();
  C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  work();
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) {
    C10_CUDA_CHECK(cudaGraphGetNodes(graph, nodes.data(), &count));
  }
  const auto kernels = std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    C10_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeKernel;
  });
  C10_CUDA_CHECK(cudaGraphDestroy(graph));
  c10::cuda::device_synchronize();
  return kernels;
}

/// Of the current device: 9 on Hopper.
inline int compute_capability_major() {
  int major = 0;
  C10_CUDA_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, static_cast<int>(c10::cuda::current_device())));
  return major;
}

}  // namespace dba::test
