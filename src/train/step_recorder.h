#pragma once

#include <functional>
#include <memory>

namespace dba::train {

/// Records the work of a training step on a GPU, so that it can be repeated without the host's part of it. The library
/// knows no CUDA: a program that is built with CUDA sets one (src/cli/cuda_graph_step.cc).
class StepRecorder {
 public:
  using Work = std::function<void()>;

  virtual ~StepRecorder() = default;
  /// Makes a stream of its own the current one, as recording needs it, until the result goes. What was under way on
  /// the device is waited for at both ends.
  virtual std::shared_ptr<void> own_stream() = 0;
  /// Records what `work` sends to the device; nothing of it runs. The result runs it on the current stream. Random
  /// numbers are drawn anew each time, the ones that `work` itself would have drawn. Throws c10::Error where the work
  /// cannot be recorded, and leaves everything as it was.
  virtual Work record(const Work& work) = 0;
};

/// Each run has a recorder of its own: what it records shares memory.
using MakeStepRecorder = std::function<std::unique_ptr<StepRecorder>()>;
void set_step_recorder(MakeStepRecorder make);
/// Nothing where the program cannot record.
std::unique_ptr<StepRecorder> make_step_recorder();

}  // namespace dba::train
