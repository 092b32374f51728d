#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/cuda/passes.h"

/// The two passes on any GPU from sm_80 on, at any shape: mma.sync and cp.async, or plain FFMA for float32.
///
/// Workspace sizes follow from the shapes and from the current device alone; they may be 0. Results are the same bits
/// in every run on the same kind of GPU. Nothing waits for the device.
namespace dba::ops::cuda::general {

size_t compress_workspace(const CompressArguments& arguments);
cudaError_t compress(const CompressArguments& arguments, cudaStream_t stream);

cudaError_t restore(const RestoreArguments& arguments, cudaStream_t stream);

size_t restore_backward_workspace(const RestoreBackwardArguments& arguments);
cudaError_t restore_backward(const RestoreBackwardArguments& arguments, cudaStream_t stream);

size_t compress_backward_workspace(const CompressBackwardArguments& arguments);
cudaError_t compress_backward(const CompressBackwardArguments& arguments, cudaStream_t stream);

}  // namespace dba::ops::cuda::general
