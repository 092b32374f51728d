// Compiled only where libdba_cuda is built: gives the training program a way to record its step.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <functional>
#include <memory>

#include "train/step_recorder.h"

namespace dba::cli {
namespace {

class OwnStream {
 public:
  // Streams of the pool do not wait for the default one.
  OwnStream() : guard_((c10::cuda::device_synchronize(), c10::cuda::getStreamFromPool())) {}
  ~OwnStream() {
    try {
      c10::cuda::device_synchronize();
    } catch (const c10::Error&) {
      // Whoever uses the device next meets the same error.
    }
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  c10::cuda::CUDAStreamGuard guard_;
};

class GraphRecorder : public train::StepRecorder {
 public:
  std::shared_ptr<void> own_stream() override {
    return std::make_shared<OwnStream>();
  }

  Work record(const Work& work) override {
    auto graph = std::make_shared<at::cuda::CUDAGraph>();
    const auto device = c10::cuda::current_device();
    const auto& generator = at::cuda::detail::getDefaultCUDAGenerator(device);
    const auto random_state = generator.get_state();
    c10::cuda::device_synchronize();
    std::exception_ptr failure;
    try {
      // Only this thread must keep to what a recording allows: autograd's threads allocate memory meanwhile.
      graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      graph->capture_end();
    } catch (...) {
      // What the work has thrown comes first: it is what broke the recording.
      failure = failure ? failure : std::current_exception();
      try {
        clean_up(device, generator, random_state);
      } catch (...) {  // the first failure is the one to tell
      }
    }
    if (failure) {
      // Nobody may record into a pool that its last graph has released.
      pool_ = at::cuda::graph_pool_handle();
      std::rethrow_exception(failure);
    }
    return [graph] { graph->replay(); };
  }

 private:
  /// What capture_end does once the device has ended the recording well, and leaves undone where it has not: without it
  /// the allocators of device and pinned memory would go on asking a graph that is gone what belongs to its pool.
  void clean_up(c10::DeviceIndex device, at::Generator generator, const at::Tensor& random_state) const {
    const auto unless_done = [](const std::function<void()>& end_and_release) {
      try {
        end_and_release();
      } catch (const c10::Error&) {
        // It had come that far, or had not begun.
      }
    };
    unless_done([&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
    });
    unless_done([&] {
      auto& pinned = *at::getHostAllocator(at::kCUDA);
      pinned.end_allocate_to_pool(pool_);
      pinned.release_pool(pool_);
    });
    auto fresh = at::cuda::detail::createCUDAGenerator(device);
    fresh.set_state(random_state);
    generator.graphsafe_set_state(fresh);
  }

  at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
};

[[maybe_unused]] const bool kRegistered =
    (train::set_step_recorder([] { return std::make_unique<GraphRecorder>(); }), true);

}  // namespace
}  // namespace dba::cli
