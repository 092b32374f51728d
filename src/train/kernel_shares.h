#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace dba::train {

/// The part of a training step that a GPU's kernel belongs to, by its name.
std::string part_of_kernel(const std::string& kernel);

/// Watches a GPU with PyTorch's profiler from its making on.
class KernelWatch {
 public:
  KernelWatch();
  ~KernelWatch();
  KernelWatch(const KernelWatch&) = delete;
  KernelWatch& operator=(const KernelWatch&) = delete;

  /// Ends it. A text: milliseconds of an update and their share for each part, then the longest kernels.
  std::string result(std::int64_t updates);

 private:
  bool on_ = true;
};

/// The table of such a text from the seconds of each kernel.
std::string kernel_table(const std::map<std::string, double>& seconds_of_kernel, std::int64_t updates);

}  // namespace dba::train
