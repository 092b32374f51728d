#pragma once

#include <ATen/autocast_mode.h>

namespace dba::train {

/// Autocast for the length of one step. The weights that it has cast are forgotten at the end: they change with every
/// update, and unlike Python's context, C++ has nobody else who would clear the cache.
class AutocastStep {
 public:
  AutocastStep(at::DeviceType device, bool on) : device_(device), on_(on) {
    if (on_) {
      at::autocast::set_autocast_dtype(device_, at::kBFloat16);
      at::autocast::set_autocast_enabled(device_, true);
    }
  }
  ~AutocastStep() {
    if (on_) {
      at::autocast::set_autocast_enabled(device_, false);
      at::autocast::clear_cache();
    }
  }
  AutocastStep(const AutocastStep&) = delete;
  AutocastStep& operator=(const AutocastStep&) = delete;

 private:
  at::DeviceType device_;
  bool on_;
};

}  // namespace dba::train
