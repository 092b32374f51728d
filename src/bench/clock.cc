#include "bench/clock.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace dba::bench {
namespace {

GraphRecorder& graph_recorder() {
  static GraphRecorder recorder;
  return recorder;
}

class HostCall : public TimedCall {
 public:
  explicit HostCall(Call call) : call_(std::move(call)) {}
  double seconds(int64_t count) override {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
      call_();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(count);
  }
  void once() override {
    call_();
  }
  std::string clock() const override {
    return "clock";
  }

 private:
  Call call_;
};

class DeviceCall : public TimedCall {
 public:
  DeviceCall(at::Device device, Call call, std::string clock)
      : guard_(device.type()), device_(device), call_(std::move(call)), clock_(std::move(clock)) {}
  double seconds(int64_t count) override {
    c10::Event start(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event stop(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    const auto stream = guard_.getStream(device_);
    start.record(stream);
    for (int64_t i = 0; i < count; ++i) {
      call_();
    }
    stop.record(stream);
    stop.synchronize();
    constexpr double kMillisecondsInASecond = 1e3;
    return start.elapsedTime(stop) / kMillisecondsInASecond / static_cast<double>(count);
  }
  void once() override {
    call_();
  }
  std::string clock() const override {
    return clock_;
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  at::Device device_;
  Call call_;
  std::string clock_;
};

}  // namespace

void set_graph_recorder(GraphRecorder recorder) {
  graph_recorder() = std::move(recorder);
}

void wait_for(at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
  }
}

std::unique_ptr<TimedCall> make_timed_call(at::Device device, Call call) {
  if (device.is_cpu()) {
    return std::make_unique<HostCall>(std::move(call));
  }
  call();
  wait_for(device);
  if (graph_recorder()) {
    try {
      auto timed = std::make_unique<DeviceCall>(device, graph_recorder()(call), "graph");
      timed->once();
      wait_for(device);
      return timed;
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error&) {
      // The call waits for the device or does something else that no graph can hold; events measure it as well.
      call();
      wait_for(device);
    }
  }
  return std::make_unique<DeviceCall>(device, std::move(call), "events");
}

CacheFlusher::CacheFlusher(at::Device device) {
  constexpr int64_t kLeast = 256 << 20;
  int64_t bytes = kLeast;
  if (device.is_cpu()) {
    bytes = std::max<int64_t>(bytes, 2 * static_cast<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE)));
  }
  memory_ = at::empty({bytes}, at::TensorOptions(at::kByte).device(device));
}

void CacheFlusher::flush() {
  memory_.fill_(1);
}

}  // namespace dba::bench
