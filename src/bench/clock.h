#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

namespace dba::bench {

using Call = std::function<void()>;

/// A call that can be timed. On the CPU by the clock; on a GPU as device time, of a recorded graph where the program
/// can record one and the call allows it, else between two events.
class TimedCall {
 public:
  virtual ~TimedCall() = default;
  /// Seconds per call over `count` calls one after the other.
  virtual double seconds(int64_t count) = 0;
  virtual void once() = 0;
  /// "clock", "graph" or "events".
  virtual std::string clock() const = 0;
};

/// On a GPU the call runs a few times first.
std::unique_ptr<TimedCall> make_timed_call(at::Device device, Call call);

/// Records a call for replay without the host's work. It throws what the call throws, and c10::Error where the call
/// cannot be recorded. The library knows no CUDA: the program sets this where it is built with CUDA.
using GraphRecorder = std::function<Call(const Call& call)>;
void set_graph_recorder(GraphRecorder recorder);

void wait_for(at::Device device);

/// Fills the caches with other memory.
class CacheFlusher {
 public:
  explicit CacheFlusher(at::Device device);
  void flush();

 private:
  at::Tensor memory_;
};

}  // namespace dba::bench
