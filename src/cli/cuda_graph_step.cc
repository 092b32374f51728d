// Compiled only where libdba_cuda is built: gives the training program a way to record its step.

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

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
    // Only this thread must keep to what a recording allows: autograd's threads allocate memory meanwhile.
    graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      abandon(*graph, device, generator, random_state);
      throw;
    }
    try {
      graph->capture_end();
    } catch (...) {
      clean_up(device, generator, random_state);
      throw;
    }
    return [graph] { graph->replay(); };
  }

 private:
  void abandon(at::cuda::CUDAGraph& graph, c10::DeviceIndex device, const at::Generator& generator,
               const at::Tensor& random_state) {
    try {
      graph.capture_end();
    } catch (const c10::Error&) {
      // The recording is broken by what the work did; that error is the one to tell.
      clean_up(device, generator, random_state);
    }
  }

  /// What capture_end does after the recording has ended well, and leaves undone where it has not.
  void clean_up(c10::DeviceIndex device, at::Generator generator, const at::Tensor& random_state) {
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
    } catch (const c10::Error&) {
      // It had come that far.
    }
    auto fresh = at::cuda::detail::createCUDAGenerator(device);
    fresh.set_state(random_state);
    generator.graphsafe_set_state(fresh);
  }

  const at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
};

[[maybe_unused]] const bool kRegistered =
    (train::set_step_recorder([] { return std::make_unique<GraphRecorder>(); }), true);

}  // namespace
}  // namespace dba::cli
