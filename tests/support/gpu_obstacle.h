#pragma once

#include "ops/fused.h"

namespace dba::test {

/// Puts what libdba_cuda says of the GPU back.
class GpuObstacleGuard {
 public:
  explicit GpuObstacleGuard(ops::GpuObstacle obstacle) : before_(ops::set_gpu_obstacle(obstacle)) {}
  ~GpuObstacleGuard() {
    ops::set_gpu_obstacle(before_);
  }

 private:
  ops::GpuObstacle before_;
};

}  // namespace dba::test
