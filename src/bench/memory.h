#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace dba::bench {

/// The most memory that a call held beyond what stood before it.
struct PeakMemory {
  int64_t tensors = -1;   ///< bytes from torch's allocator
  int64_t resident = -1;  ///< CPU: growth of the process, what libraries take for themselves included; −1: unknown
};

PeakMemory measure_peak(at::Device device, const std::function<void()>& call);

/// Bytes that a program may still take on the device.
int64_t available_memory(at::Device device);

}  // namespace dba::bench
