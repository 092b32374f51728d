#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "ops/checks.h"
#include "ops/cuda/core_backward.h"
#include "ops/cuda/core_call.h"
#include "ops/cuda/core_fused.h"
#include "ops/cuda/core_projections.h"
#include "ops/cuda/general_convert.h"
#include "ops/cuda/hopper_core.h"
#include "ops/cuda/pass_operands.h"
#include "ops/fused.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

const void* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

/// Whether the addresses allow loads of 16 bytes.
bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

MixOut mix_out(const FusedCore& out) {
  MixOut result;
  result.m = out.m.defined() ? out.m.mutable_data_ptr<float>() : nullptr;
  if (out.rounded.scalar_type() != at::kFloat) {
    result.rounded = out.rounded.mutable_data_ptr();
    result.centred = out.centred.defined() ? out.centred.mutable_data_ptr() : nullptr;
    result.type = element_of(out.rounded.scalar_type());
  }
  return result;
}

/// What core_paper takes.
CorePaperArguments paper_arguments(const CoreCall& call, const FusedCore& out) {
  CorePaperArguments given{};
  given.element = call.element();
  given.batch = narrow(call.batch);
  given.heads = narrow(call.heads);
  given.d_p = narrow(call.d_p);
  given.d = narrow(call.d);
  const std::array<std::pair<Tensor, Tensor>, 3> layers{{{call.w.query_weight, call.w.query_bias},
                                                         {call.w.key_weight, call.w.key_bias},
                                                         {call.w.value_weight, call.w.value_bias}}};
  given.aligned = aligned({call.w.out_weight.const_data_ptr()});
  for (int64_t i = 0; i < 3; ++i) {
    Lifted& lifted = given.lifted[i];
    if (call.cross && i > 0) {
      lifted.source = call.other.const_data_ptr<float>();
      lifted.sequence_stride = call.d_p * call.d;
    } else {
      const auto rows = call.summary(call.c, i);
      lifted.source = static_cast<const float*>(rows.data);
      lifted.sequence_stride = rows.outer;
      lifted.head_stride = rows.head;
      const auto sums = call.row_sums(call.r, i);
      lifted.sums = static_cast<const float*>(sums.data);
      lifted.sums_sequence_stride = sums.outer;
    }
    const auto& [weight, bias] = layers[static_cast<size_t>(i)];
    lifted.weight = weight.const_data_ptr();
    lifted.bias = data_or_null(bias);
    lifted.width = narrow(weight.size(0) / call.heads);
    given.aligned = given.aligned && aligned({lifted.source, lifted.weight});
  }
  given.width = data_or_null(call.w.width);
  given.e = narrow(call.e);
  given.out_weight = call.w.out_weight.const_data_ptr();
  given.out_width = narrow(call.out_width);
  given.dropout = call.dropout();
  given.m = mix_out(out);
  given.compressed = out.compressed.mutable_data_ptr<float>();
  return given;
}

/// What hopper::core_released takes.
hopper::CoreReleasedArguments released_arguments(const CoreCall& call, const FusedCore& out) {
  hopper::CoreReleasedArguments given{};
  given.element = call.element();
  given.cross = call.cross;
  given.batch = narrow(call.batch);
  given.heads = narrow(call.heads);
  given.d_p = narrow(call.d_p);
  given.d = narrow(call.d);
  given.compressed_width = narrow(call.compressed_width);
  given.e = narrow(call.e);
  given.value_width = narrow(call.value_width);
  given.c = call.c.const_data_ptr<float>();
  given.r = call.r.const_data_ptr<float>();
  given.compress_weight = call.w.compress_weight.const_data_ptr();
  given.compress_bias = data_or_null(call.w.compress_bias);
  given.query_weight = call.w.query_weight.const_data_ptr();
  given.query_bias = data_or_null(call.w.query_bias);
  given.key_weight = call.w.key_weight.const_data_ptr();
  given.key_bias = data_or_null(call.w.key_bias);
  given.value_weight = call.w.value_weight.const_data_ptr();
  given.value_bias = data_or_null(call.w.value_bias);
  given.norm_weight = call.w.norm_weight.const_data_ptr();
  given.norm_bias = call.w.norm_bias.const_data_ptr();
  given.out_weight = call.w.out_weight.const_data_ptr();
  given.out_width = narrow(call.out_width);
  given.aligned = aligned(
      {given.c, given.compress_weight, given.query_weight, given.key_weight, given.value_weight, given.out_weight});
  given.dropout = call.dropout();
  given.m = mix_out(out);
  given.compressed = out.compressed.mutable_data_ptr<float>();
  return given;
}

/// q, k, v of form `paper`; q is `compressed`.
std::tuple<Tensor, Tensor, Tensor> project_paper(const CoreCall& call, const Tensor& compressed) {
  const auto& w = call.w;
  const auto k = call.joined(call.query_width);
  const auto v = call.joined(call.value_width);
  auto first = call.list();
  append_paper_projections(first, call, compressed, k, v);
  run(first, call.c);
  if (!w.width.defined()) {
    return {compressed, k, v};
  }
  const auto narrow_q = call.joined(call.e);
  const auto narrow_k = call.joined(call.e);
  auto second = call.list();
  append(second, call.narrowed(compressed, narrow_q));
  append(second, call.narrowed(k, narrow_k));
  run(second, call.c);
  return {narrow_q, narrow_k, v};
}

/// Both forms in steps: projections, attention between slots, W_O.
void forward_in_steps(const CoreCall& call, const CoreDevice& device, const FusedCore& out) {
  const auto [q, k, v] = call.released ? project_released(call, out.compressed) : project_paper(call, out.compressed);
  const auto normed = call.joined(call.value_width);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(core_attend(attend_arguments(call, q, k, v, normed), device, stream));
  auto last = call.list();
  auto product = call.mixed_out(normed, out.m);
  const auto type = element_of(out.rounded.scalar_type());
  const bool rounds = type != Element::float32;
  if (rounds && type == call.element()) {
    product.rounded = out.rounded.mutable_data_ptr();
  }
  append(last, product);
  run(last, call.c);
  if (rounds && type != call.element()) {
    C10_CUDA_CHECK(general::round_to_elements(out.rounded.mutable_data_ptr(), out.m.const_data_ptr<float>(),
                                              out.m.numel(), type, stream));
  }
}

/// Whether a kernel that does everything serves, and has been launched.
bool forward_in_one_launch(const CoreCall& call, const CoreDevice& device, const FusedCore& out) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (!call.released) {
    const auto given = paper_arguments(call, out);
    const bool serves = core_paper_serves(given, device);
    if (serves) {
      C10_CUDA_CHECK(core_paper(given, device, stream));
    }
    return serves;
  }
  if (!hopper_chosen()) {
    return false;
  }
  const auto given = released_arguments(call, out);
  if (const char* const obstacle = hopper::core_released_obstacle(given); obstacle != nullptr) {
    log_choice(std::string("core: step by step, because ") + obstacle);
    return false;
  }
  const auto status = hopper::core_released(given, stream);
  if (status == cudaErrorLaunchOutOfResources) {
    cudaGetLastError();  // or the next check would find it
    log_choice("core: step by step, because the device has no room for a cluster of the kernel of one launch");
    return false;
  }
  C10_CUDA_CHECK(status);
  return true;
}

}  // namespace

FusedCore core_on_gpu(const Tensor& c, const Tensor& r, const CoreWeights& weights, int64_t heads,
                      const Dropout& dropout, const WantedOfCore& wanted) {
  TORCH_INTERNAL_ASSERT(!wanted.centred || wanted.type != at::kFloat);
  check_core("core", c, r, weights, heads);
  check_dropout("core", dropout, c.device());
  const c10::cuda::CUDAGuard guard(c.device());
  const CoreCall call(c, r, weights, heads, dropout);
  const auto device = current_device();
  if (!use_fused_on_gpu("core", call.obstacle(device, /*backward=*/false))) {
    const auto plain = reference::core(c, r, weights, heads, dropout);
    return {plain.m, plain.c, wanted.type == at::kFloat ? plain.m : plain.m.to(wanted.type),
            wanted.centred ? centred(plain.m, heads, wanted.type) : Tensor()};
  }
  const std::array<int64_t, 3> sizes{call.batch, call.heads * call.d_p, call.out_width};
  FusedCore result;
  result.compressed = call.floats({call.batch, call.d_p, call.compressed_width});
  const auto options = result.compressed.options().dtype(wanted.type);
  if (wanted.type == at::kFloat) {
    result.m = call.floats(sizes);
  }
  result.rounded = wanted.type == at::kFloat ? result.m : at::empty(sizes, options);
  if (wanted.centred) {
    result.centred = at::empty(sizes, options);
  }
  if (call.batch > 0 && !forward_in_one_launch(call, device, result)) {
    if (!result.m.defined()) {
      result.m = call.floats(sizes);
    }
    forward_in_steps(call, device, result);
    if (wanted.centred) {
      result.centred = centred(result.m, heads, wanted.type);
    }
  }
  return result;
}

std::vector<Tensor> core_backward_on_gpu(const Tensor& c, const Tensor& r, const CoreWeights& weights, int64_t heads,
                                         const Dropout& dropout, const Tensor& dm, const Tensor& dcompressed,
                                         bool wants_dr) {
  const c10::cuda::CUDAGuard guard(c.device());
  const CoreCall call(c, r, weights, heads, dropout);
  const auto device = current_device();
  const auto gradients = use_fused_on_gpu("core_backward", call.obstacle(device, /*backward=*/true)) && call.batch > 0
                             ? core_backward(call, device, dm, dcompressed, wants_dr)
                             : reference::core_backward(c, r, weights, heads, dropout, dm, dcompressed);
  std::vector<Tensor> result{gradients.dc, gradients.dr};
  for (const auto member : core_weight_members()) {
    if ((weights.*member).defined()) {
      result.push_back((gradients.weights.*member).to((weights.*member).scalar_type()));
    }
  }
  return result;
}

namespace {

std::tuple<Tensor, Tensor> core_cuda(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                     double p, const Optional& rng) {
  const SettledTypes settled;
  const auto result = core_on_gpu(c, r, core_weights(weights), heads, dropout_of(p, rng), {});
  return {result.m, result.compressed};
}

std::vector<Tensor> core_backward_cuda(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                       double p, const Optional& rng, const Optional& dm, const Optional& dcompressed) {
  const SettledTypes settled;
  return core_backward_on_gpu(c, r, core_weights(weights), heads, dropout_of(p, rng), value_or_absent(dm),
                              value_or_absent(dcompressed), /*wants_dr=*/true);
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("core", core_cuda);
  m.impl("core_backward", core_backward_cuda);
}

}  // namespace dba::ops::cuda
