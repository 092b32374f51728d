#pragma once

#include "ops/cuda/passes.h"

/// The passes on Hopper's tensor cores and copy engine (sm_90a): half types, widths up to 256.
namespace dba::ops::cuda::hopper {

/// Why these kernels cannot serve, or null.
const char* compress_obstacle(const CompressArguments& arguments);
size_t compress_workspace(const CompressArguments& arguments, int multiprocessors);
cudaError_t compress(const CompressArguments& arguments, int multiprocessors, cudaStream_t stream);

const char* restore_obstacle(const RestoreArguments& arguments);
cudaError_t restore(const RestoreArguments& arguments, int multiprocessors, cudaStream_t stream);

const char* restore_backward_obstacle(const RestoreBackwardArguments& arguments);
size_t restore_backward_workspace(const RestoreBackwardArguments& arguments, int multiprocessors);
cudaError_t restore_backward(const RestoreBackwardArguments& arguments, int multiprocessors, cudaStream_t stream);

const char* compress_backward_obstacle(const CompressBackwardArguments& arguments);
size_t compress_backward_workspace(const CompressBackwardArguments& arguments, int multiprocessors);
cudaError_t compress_backward(const CompressBackwardArguments& arguments, int multiprocessors, cudaStream_t stream);

}  // namespace dba::ops::cuda::hopper
