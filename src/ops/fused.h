#pragma once

#include <string>

namespace dba::ops {

/// Whether an operator takes its fused kernel. `obstacle` says why the kernel cannot serve this call ("d must be at
/// most 1024, got 2048"), or is empty. With backend `fused` an obstacle is an error; with `auto` it is logged once
/// (DBA_LOG=debug) and the reference serves; with `reference` the answer is always no.
bool use_fused(const char* function, const std::string& obstacle);

/// The same for kernels on a GPU, which `auto` takes only where cuda_kernels() lets it and the build has kernels for
/// it.
bool use_fused_on_gpu(const char* function, const std::string& obstacle);

/// libdba_cuda leaves here a function that says why its kernels cannot run on the current GPU; empty: they can. Gives
/// back the one before, null at first.
using GpuObstacle = std::string (*)();
GpuObstacle set_gpu_obstacle(GpuObstacle obstacle);

/// What that function says; empty without one.
std::string gpu_obstacle();

/// Says once on standard error which kernel was chosen and why, where DBA_LOG=debug asks for it.
void log_choice(const std::string& message);

}  // namespace dba::ops
