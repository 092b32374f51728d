#include "ops/cuda/pass_operands.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <string_view>

#include "dba/backend.h"
#include "ops/cuda/centre_rows.h"
#include "ops/cuda/tensor_map.h"

namespace dba::ops::cuda {

using at::Tensor;

namespace {

/// Bytes that the kernels read at once.
constexpr uintptr_t kAlignment = 16;

}  // namespace

std::string tokens_obstacle(const Tensor& x) {
  const auto type = x.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16 && type != at::kHalf) {
    return std::string("x must be float32, bfloat16 or float16, got ") + c10::toString(type);
  }
  if (x.size(1) < 8 || x.size(1) > 1024) {
    return "the CUDA kernels take widths from 8 to 1024, and x has " + std::to_string(x.size(1));
  }
  return {};
}

Element element_of(at::ScalarType type) {
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16 || type == at::kFloat,
              "dba: the CUDA kernels take float16, bfloat16 and float32, got ", c10::toString(type),
              "; convert to one of these");
  return type == at::kHalf ? Element::float16 : type == at::kBFloat16 ? Element::bfloat16 : Element::float32;
}

bool tf32_allowed() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
         at::Float32Precision::TF32;
}

int multiprocessors() {
  return at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
}

bool hopper_chosen() {
  return cuda_kernels() != CudaKernels::general && at::cuda::getCurrentDeviceProperties()->major == 9;
}

Tensor aligned(const Tensor& tensor) {
  const auto packed = tensor.contiguous();
  return reinterpret_cast<uintptr_t>(packed.const_data_ptr()) % kAlignment == 0 ? packed : packed.clone();
}

Matrix matrix_of(const Tensor& rows) {
  // A single row may have any stride.
  const int64_t stride = rows.size(0) == 1 ? rows.size(1) : rows.stride(0);
  return {rows.const_data_ptr(), rows.size(0), stride, static_cast<int>(rows.size(1))};
}

Tensor readable_rows(const Tensor& rows) {
  const auto matrix = matrix_of(rows);
  const bool side_by_side = (rows.stride(1) == 1 || rows.size(1) == 1) && matrix.stride >= rows.size(1);
  return side_by_side && describable(matrix) ? rows : aligned(rows);
}

BoundsOperand::BoundsOperand(const Sequences& sequences)
    : begin(sequences.begin.to(at::kLong).contiguous()), end(sequences.end.to(at::kLong).contiguous()) {}

Bounds BoundsOperand::bounds() const {
  return {begin.const_data_ptr<int64_t>(), end.const_data_ptr<int64_t>(), begin.size(0)};
}

Tensor floats(const Tensor& tensor) {
  return tensor.defined() ? aligned(tensor.to(at::kFloat)) : tensor;
}

float* float_data(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

Tensor centred(const Tensor& m, int64_t heads, at::ScalarType type) {
  const auto rows = floats(m);
  auto out = at::empty(rows.sizes(), rows.options().dtype(type));
  C10_CUDA_CHECK(centre_rows(out.mutable_data_ptr(), element_of(type), rows.const_data_ptr<float>(),
                             rows.size(0) * heads, static_cast<int>(rows.size(1) / heads),
                             static_cast<int>(rows.size(2)), c10::cuda::getCurrentCUDAStream()));
  return out;
}

void set_bias(const Tensor& bias, const float*& in_floats, const void*& as_elements) {
  in_floats = nullptr;
  as_elements = nullptr;
  if (bias.defined()) {
    (bias.scalar_type() == at::kFloat ? reinterpret_cast<const void*&>(in_floats) : as_elements) =
        bias.const_data_ptr();
  }
}

Tensor bias_of(const Tensor& bias, const Tensor& x) {
  return bias.defined() && bias.scalar_type() == x.scalar_type() ? bias.contiguous() : floats(bias);
}

RowsOperand::RowsOperand(const ScoreRows& rows, const Tensor& x)
    : each_bias(bias_of(rows.each_bias, x)),
      shared_bias(bias_of(rows.shared_bias, x)),
      linear(static_cast<int>(rows.linear)) {
  if (rows.each.defined() && rows.each.size(1) > 0) {
    each = rows.each.to(x.scalar_type());
    const bool rows_in_order = each.stride(2) == 1 && each.stride(1) == each.size(2) && each.stride(0) % 8 == 0 &&
                               reinterpret_cast<uintptr_t>(each.const_data_ptr()) % kAlignment == 0;
    if (!rows_in_order) {
      each = aligned(each);
    }
  }
  if (rows.shared.defined() && rows.shared.size(0) > 0) {
    shared = aligned(rows.shared.to(x.scalar_type()));
  }
}

void RowsOperand::widen_biases() {
  each_bias = floats(each_bias);
  shared_bias = floats(shared_bias);
}

ScoreOperand RowsOperand::operand() const {
  ScoreOperand result;
  if (each.defined()) {
    result.each = each.const_data_ptr();
    result.each_stride = each.stride(0);
    result.each_rows = static_cast<int>(each.size(1));
    set_bias(each_bias, result.each_bias, result.each_bias_elements);
  }
  if (shared.defined()) {
    result.shared = shared.const_data_ptr();
    result.shared_rows = static_cast<int>(shared.size(0));
    set_bias(shared_bias, result.shared_bias, result.shared_bias_elements);
  }
  result.linear = linear;
  return result;
}

DropoutOperand::DropoutOperand(const Dropout& dropout)
    : rng(dropout.p > 0 ? dropout.rng.contiguous() : dropout.rng), p(dropout.p) {}

DropoutKey DropoutOperand::key() const {
  return {p > 0 ? rng.const_data_ptr<int64_t>() : nullptr, p};
}

Tensor scratch(size_t bytes, const Tensor& like) {
  static const bool poisoned = [] {
    const char* wanted = std::getenv("DBA_POISON_SCRATCH");
    return wanted != nullptr && std::string_view(wanted) == "1";
  }();
  auto memory = at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
  if (poisoned) {
    memory.fill_(0xFF);
  }
  return memory;
}

}  // namespace dba::ops::cuda
