#include "bench/memory.h"

#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>

#include "bench/clock.h"

namespace dba::bench {
namespace {

/// Torch's own memory for the CPU, with a count of what is held, now and at most.
class CountingAllocator : public c10::Allocator {
 public:
  static CountingAllocator& instance() {
    static CountingAllocator allocator;
    return allocator;
  }
  void restart() {
    const std::lock_guard lock(mutex_);
    held_ = 0;
    peak_ = 0;
    sizes_.clear();
  }
  int64_t peak() const {
    return peak_;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* memory = c10::alloc_cpu(bytes);
    const std::lock_guard lock(mutex_);
    sizes_[memory] = static_cast<int64_t>(bytes);
    held_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, held_);
    return {memory, memory, &release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* memory) {
    instance().forget(memory);
    c10::free_cpu(memory);
  }
  void forget(void* memory) {
    const std::lock_guard lock(mutex_);
    // What an earlier measurement left behind is not in the list.
    if (const auto found = sizes_.find(memory); found != sizes_.end()) {
      held_ -= found->second;
      sizes_.erase(found);
    }
  }

  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  int64_t held_ = 0;
  int64_t peak_ = 0;
};

/// All tensors of the CPU come from the counting allocator while it lives.
class CountedTensors {
 public:
  CountedTensors() : before_(c10::GetCPUAllocator()) {
    CountingAllocator::instance().restart();
    c10::SetCPUAllocator(&CountingAllocator::instance());
  }
  ~CountedTensors() {
    c10::SetCPUAllocator(before_);
  }
  CountedTensors(const CountedTensors&) = delete;
  CountedTensors& operator=(const CountedTensors&) = delete;

 private:
  c10::Allocator* before_;
};

/// "VmHWM:   123 kB" of /proc/self/status in bytes, or −1.
int64_t field_in_bytes(const char* file, const std::string& field) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind(field + ":", 0) == 0) {
      std::istringstream words(line.substr(field.size() + 1));
      int64_t kilobytes = -1;
      words >> kilobytes;
      return kilobytes < 0 ? -1 : kilobytes * 1024;
    }
  }
  return -1;
}

/// Makes the highest resident size start again from the present one; false where the system does not allow it.
bool restart_resident_peak() {
  malloc_trim(0);
  std::ofstream stream("/proc/self/clear_refs");
  constexpr const char* kPeakOnly = "5";
  stream << kPeakOnly;
  return static_cast<bool>(stream.flush());
}

PeakMemory peak_on_cpu(const std::function<void()>& call) {
  PeakMemory peak;
  const bool resident = restart_resident_peak();
  const int64_t before = resident ? field_in_bytes("/proc/self/status", "VmRSS") : -1;
  {
    const CountedTensors counted;
    call();
    peak.tensors = CountingAllocator::instance().peak();
  }
  if (resident && before >= 0) {
    peak.resident = std::max<int64_t>(0, field_in_bytes("/proc/self/status", "VmHWM") - before);
  }
  return peak;
}

/// PyTorch's, which knows the devices only once somebody has used one.
c10::DeviceAllocator* allocator_of(at::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return c10::getDeviceAllocator(device.type());
}

c10::DeviceIndex index_of(at::Device device) {
  return device.has_index() ? device.index() : c10::impl::VirtualGuardImpl(device.type()).getDevice().index();
}

}  // namespace

PeakMemory measure_peak(at::Device device, const std::function<void()>& call) {
  if (device.is_cpu()) {
    return peak_on_cpu(call);
  }
  auto* allocator = allocator_of(device);
  const auto index = index_of(device);
  constexpr size_t kAllPools = 0;
  wait_for(device);
  allocator->resetPeakStats(index);
  const auto before = allocator->getDeviceStats(index).allocated_bytes[kAllPools].current;
  call();
  wait_for(device);
  return {allocator->getDeviceStats(index).allocated_bytes[kAllPools].peak - before, -1};
}

int64_t available_memory(at::Device device) {
  if (device.is_cpu()) {
    return field_in_bytes("/proc/meminfo", "MemAvailable");
  }
  auto* allocator = allocator_of(device);
  const auto index = index_of(device);
  constexpr size_t kAllPools = 0;
  const auto stats = allocator->getDeviceStats(index);
  // What the allocator holds and nobody uses can be had as well.
  return static_cast<int64_t>(allocator->getMemoryInfo(index).first) + stats.reserved_bytes[kAllPools].current -
         stats.allocated_bytes[kAllPools].current;
}

}  // namespace dba::bench
