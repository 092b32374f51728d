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
#include "ops/fused.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

const void* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

bool multiples_of_eight(std::initializer_list<int64_t> sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size % 8 == 0; });
}

/// Whether the addresses allow loads of 16 bytes.
bool aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; });
}

/// Form `paper`: one launch.
void forward_paper(const CoreCall& call, const CoreDevice& device, const MixOut& m, const Tensor& compressed) {
  CoreForwardArguments given{};
  given.element = call.element();
  given.tf32 = call.tf32();
  given.batch = narrow(call.batch);
  given.heads = narrow(call.heads);
  given.d_p = narrow(call.d_p);
  given.d = narrow(call.d);
  const std::array<std::pair<Tensor, Tensor>, 3> layers{{{call.w.query_weight, call.w.query_bias},
                                                         {call.w.key_weight, call.w.key_bias},
                                                         {call.w.value_weight, call.w.value_bias}}};
  given.aligned = multiples_of_eight({call.d, call.query_width, call.value_width});
  for (int64_t i = 0; i < 3; ++i) {
    Lifted& lifted = given.lifted[i];
    if (call.cross && i > 0) {
      lifted.source = call.other.const_data_ptr<float>();
      lifted.sequence_stride = call.d_p * call.d;
      lifted.row_stride = call.d;
    } else {
      const auto rows = call.summary(call.c, i);
      lifted.source = static_cast<const float*>(rows.data);
      lifted.sequence_stride = rows.outer;
      lifted.row_stride = rows.inner;
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
  given.aligned = given.aligned && aligned({given.out_weight});
  given.dropout = call.dropout();
  given.m = m;
  given.compressed = compressed.mutable_data_ptr<float>();
  const auto stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(core_paper_serves(given, device) ? core_paper(given, device, stream)
                                                  : core_forward(given, device, stream));
}

/// Form `released`: two launches for the projections, because the second takes all heads of the first, then one.
void forward_released(const CoreCall& call, const CoreDevice& device, const MixOut& m, const Tensor& compressed) {
  const auto [q, k, v] = project_released(call, device, compressed);
  CoreMixArguments given{};
  given.element = call.element();
  given.tf32 = call.tf32();
  given.batch = narrow(call.batch);
  given.heads = narrow(call.heads);
  given.d_p = narrow(call.d_p);
  given.q = q.const_data_ptr<float>();
  given.k = k.const_data_ptr<float>();
  given.v = v.const_data_ptr<float>();
  given.e = narrow(call.e);
  given.value_width = narrow(call.value_width);
  given.norm_weight = call.w.norm_weight.const_data_ptr();
  given.norm_bias = call.w.norm_bias.const_data_ptr();
  given.out_weight = call.w.out_weight.const_data_ptr();
  given.out_width = narrow(call.out_width);
  given.aligned = multiples_of_eight({call.value_width}) && aligned({given.out_weight});
  given.dropout = call.dropout();
  given.m = m;
  C10_CUDA_CHECK(core_mix(given, device, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

FusedCore core_on_gpu(const Tensor& c, const Tensor& r, const CoreWeights& weights, int64_t heads,
                      const Dropout& dropout, at::ScalarType rounded) {
  check_core("core", c, r, weights, heads);
  check_dropout("core", dropout, c.device());
  const c10::cuda::CUDAGuard guard(c.device());
  const CoreCall call(c, r, weights, heads, dropout);
  const auto device = current_device();
  FusedCore result;
  if (!use_fused_on_gpu("core", call.obstacle(device, /*backward=*/false))) {
    const auto plain = reference::core(c, r, weights, heads, dropout);
    return {plain.m, plain.c, rounded == at::kFloat ? plain.m : plain.m.to(rounded)};
  }
  result.m = call.floats({call.batch, call.heads * call.d_p, call.out_width});
  result.compressed = call.floats({call.batch, call.d_p, call.compressed_width});
  MixOut m{result.m.mutable_data_ptr<float>()};
  if (rounded == at::kFloat) {
    result.rounded = result.m;
  } else {
    result.rounded = at::empty(result.m.sizes(), result.m.options().dtype(rounded));
    m.rounded = result.rounded.mutable_data_ptr();
    m.type = element_of(rounded);
  }
  if (call.batch > 0) {
    call.released ? forward_released(call, device, m, result.compressed)
                  : forward_paper(call, device, m, result.compressed);
  }
  return result;
}

namespace {

std::tuple<Tensor, Tensor> core_cuda(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                     double p, const Optional& rng) {
  const SettledTypes settled;
  const auto result = core_on_gpu(c, r, core_weights(weights), heads, dropout_of(p, rng), at::kFloat);
  return {result.m, result.compressed};
}

std::vector<Tensor> core_backward_cuda(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                       double p, const Optional& rng, const Optional& dm, const Optional& dcompressed) {
  const SettledTypes settled;
  const c10::cuda::CUDAGuard guard(c.device());
  const auto dropout = dropout_of(p, rng);
  const auto parameters = core_weights(weights);
  const CoreCall call(c, r, parameters, heads, dropout);
  const auto device = current_device();
  const auto gradients = use_fused_on_gpu("core_backward", call.obstacle(device, /*backward=*/true)) && call.batch > 0
                             ? core_backward(call, device, value_or_absent(dm), value_or_absent(dcompressed))
                             : reference::core_backward(c, r, parameters, heads, dropout, value_or_absent(dm),
                                                        value_or_absent(dcompressed));
  std::vector<Tensor> result{gradients.dc, gradients.dr};
  for (const auto member : core_weight_members()) {
    if ((parameters.*member).defined()) {
      result.push_back((gradients.weights.*member).to((parameters.*member).scalar_type()));
    }
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CUDA, m) {
  m.impl("core", core_cuda);
  m.impl("core_backward", core_backward_cuda);
}

}  // namespace dba::ops::cuda
