#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// Tensors that a call needs and that do not depend on the tokens: bounds of a plain batch, masks, indices, identities.
/// On a GPU each costs a launch, which for few tokens is as long as a product.
namespace dba::ops {

/// What decides such tensors: a name and all numbers that they are made of, which the host knows.
struct KeptKey {
  std::string name;
  std::vector<int64_t> numbers;

  bool operator==(const KeptKey&) const = default;
};

/// The key of tensors that are made of what `key` decides and of more numbers; none without one.
std::optional<KeptKey> more_of(const std::optional<KeptKey>& key, const std::string& part,
                               const std::vector<int64_t>& more = {});

/// make(), or what it gave for an earlier call of the process with this key, type, device and stream. Nobody may write
/// into the tensors. Kept are the latest ones, of 16 MB at most and 64 MB together; none without a key, in a call that
/// is recorded as a CUDA graph (whose tensors belong to the graph), or where PyTorch watches operations one by one
/// (torch.func, fake tensors). Not for operators that compiled graphs contain: their warm-up makes tensors in the
/// memory of a graph to come, and nobody can tell.
std::vector<at::Tensor> kept_tensors(const std::optional<KeptKey>& key, const at::TensorOptions& options,
                                     c10::function_ref<std::vector<at::Tensor>()> make);
/// The same for one tensor.
at::Tensor kept_tensor(const std::optional<KeptKey>& key, const at::TensorOptions& options,
                       c10::function_ref<at::Tensor()> make);

/// Forgets all of them; the operator dba::forget_kept_tensors.
void forget_kept_tensors();

/// libdba_cuda leaves here a function that says whether the current stream of a GPU is being recorded. Without one
/// nothing is kept on GPUs. Gives back the one before, null at first.
using GpuRecording = bool (*)(c10::DeviceIndex);
GpuRecording set_gpu_recording(GpuRecording recording);

}  // namespace dba::ops
