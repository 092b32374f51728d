// Compiled only where libdba_cuda is built: gives the benchmark a way to record calls.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>

#include "bench/clock.h"

namespace dba::cli {
namespace {

bench::Call record(const bench::Call& call) {
  auto graph = std::make_shared<at::cuda::CUDAGraph>();
  c10::cuda::device_synchronize();
  // Blocks that the allocator keeps belong to a stream; neither another one nor a graph's pool can take them.
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  // Libraries set themselves up in their first call on a stream, which a recording does not allow.
  call();
  c10::cuda::device_synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  graph->capture_begin();
  try {
    call();
  } catch (...) {
    try {
      graph->capture_end();
    } catch (const c10::Error&) {
      // The recording is broken by what the call did; that error is the one to tell.
    }
    throw;
  }
  graph->capture_end();
  return [graph] { graph->replay(); };
}

[[maybe_unused]] const bool kRegistered = (bench::set_graph_recorder(record), true);

}  // namespace
}  // namespace dba::cli
