#include "ops/cuda/core_call.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <limits>

#include "ops/arguments.h"

namespace dba::ops::cuda {
namespace {

constexpr int kOneBlock = std::numeric_limits<int>::max();

/// The type that all weights share, or float32 where they differ.
at::ScalarType shared_type(const CoreWeights& weights) {
  auto type = weights.out_weight.scalar_type();
  for (const auto member : core_weight_members()) {
    const auto& weight = weights.*member;
    if (weight.defined() && member != &CoreWeights::other && weight.scalar_type() != type) {
      type = at::kFloat;
    }
  }
  return type;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, c10::cuda::current_device()));
  return value;
}

}  // namespace

CoreDevice current_device() {
  return {attribute(cudaDevAttrMultiProcessorCount), attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
}

CoreCall::CoreCall(const at::Tensor& c_, const at::Tensor& r_, const CoreWeights& weights, int64_t heads_,
                   const Dropout& dropout)
    : c(c_.contiguous()),
      r(r_.contiguous()),
      released(weights.compress_weight.defined()),
      cross(weights.other.defined()),
      batch(c.size(0)),
      heads(heads_),
      d(c.size(2)),
      groups(released || cross ? 1 : 3),
      query_width(weights.query_weight.size(0) / heads),
      value_width(weights.value_weight.size(0) / heads),
      e(weights.width.defined() ? weights.width.size(2) : query_width),
      out_width(weights.out_weight.size(0)),
      p(dropout.p) {
  d_p = c.size(1) / (groups * heads);
  compressed_width = released ? weights.compress_weight.size(0) : weights.query_weight.size(0);
  const auto type = shared_type(weights);
  for (const auto member : core_weight_members()) {
    if ((weights.*member).defined() && member != &CoreWeights::other) {
      w.*member = (weights.*member).to(type).contiguous();
    }
  }
  if (cross) {
    other = weights.other.to(c.scalar_type()).contiguous();
  }
  if (p > 0) {
    rng = dropout.rng.contiguous();
  }
}

Element CoreCall::element() const {
  return element_of(w.out_weight.scalar_type());
}

bool CoreCall::tf32() const {
  return element() != Element::float32 || tf32_allowed();
}

CoreDropout CoreCall::dropout() const {
  return core_dropout({p > 0 ? rng.const_data_ptr<int64_t>() : nullptr, p});
}

std::string CoreCall::obstacle(const CoreDevice& device, bool backward) const {
  const auto number = [](int64_t value) { return std::to_string(value); };
  if (c.scalar_type() != at::kFloat) {
    return std::string("c must be float32, got ") + c10::toString(c.scalar_type());
  }
  if (d_p < 1 || d_p > 256) {
    return "d_p must be from 1 to 256, got " + number(d_p);
  }
  const auto longest = std::max({c.numel() / std::max<int64_t>(batch, 1), rows(), batch * heads,
                                 heads * std::max(query_width, value_width), d * compressed_width});
  if (longest > std::numeric_limits<int>::max() / 64) {
    return "sizes must stay below 2²⁵ rows and numbers a sequence, got " + number(longest);
  }
  const auto forward_bytes = core_attend_bytes(narrow(d_p), narrow(heads), narrow(value_width));
  const auto backward_bytes = core_attend_backward_bytes(narrow(d_p), narrow(e), w.width.defined());
  const auto bytes = backward ? std::max(forward_bytes, backward_bytes) : forward_bytes;
  if (bytes > device.shared_bytes) {
    return "d_p = " + number(d_p) + " with " + number(heads) + " heads of width " + number(value_width) + " needs " +
           number(bytes) + " bytes of shared memory, the device gives a block " + number(device.shared_bytes);
  }
  return {};
}

at::Tensor CoreCall::floats(at::IntArrayRef sizes) const {
  return at::empty(sizes, c.options());
}

HeadMatrix CoreCall::summary(const at::Tensor& of, int64_t group) const {
  return {of.const_data_ptr<float>() + group * heads * d_p * d, groups * heads * d_p * d, d, d_p * d, narrow(d_p)};
}

HeadMatrix CoreCall::row_sums(const at::Tensor& of, int64_t group) const {
  return {of.const_data_ptr<float>() + group * heads * d_p, groups * heads * d_p, 1, d_p, narrow(d_p)};
}

HeadMatrix CoreCall::slot_rows(const at::Tensor& of) const {
  const auto width = of.size(2);
  return {of.const_data_ptr(), heads * d_p * width, width, d_p * width, narrow(d_p)};
}

HeadMatrix CoreCall::by_head(const at::Tensor& of, int64_t width) const {
  return {of.const_data_ptr(), 0, heads * width, width, kOneBlock};
}

HeadMatrix CoreCall::whole(const at::Tensor& of) {
  return {of.const_data_ptr(), 0, of.size(-1), 0, kOneBlock};
}

HeadMatrix CoreCall::weight_rows(const at::Tensor& of, int64_t width) {
  return {of.const_data_ptr(), 0, of.size(1), width * of.size(1), kOneBlock};
}

HeadMatrix CoreCall::weight_columns(const at::Tensor& of, int64_t width) {
  return {of.const_data_ptr(), 0, of.size(1), width, kOneBlock};
}

HeadMatrix CoreCall::vector(const at::Tensor& of, int64_t width) {
  return {of.const_data_ptr(), 0, 1, width, kOneBlock};
}

ProductList CoreCall::list() const {
  ProductList result;
  result.a = Element::float32;
  result.b = element();
  result.tf32 = tf32();
  return result;
}

Product CoreCall::lift(int64_t group, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) const {
  const auto width = weight.size(0) / heads;
  Product product;
  product.orientation = Orientation::along_along;
  product.part[0] = {summary(c, group), weight_rows(weight, width), narrow(d)};
  product.parts = 1;
  product.heads = narrow(heads);
  product.rows = narrow(rows());
  product.columns = narrow(width);
  product.bias = bias.defined() ? bias.const_data_ptr() : nullptr;
  product.sums = row_sums(r, group);
  product.out = by_head(out, width);
  return product;
}

Product CoreCall::project(const at::Tensor& source, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& out) const {
  Product product;
  product.orientation = Orientation::along_along;
  product.part[0] = {whole(source), whole(weight), narrow(weight.size(1))};
  product.parts = 1;
  product.rows = narrow(rows());
  product.columns = narrow(weight.size(0));
  product.bias = bias.defined() ? bias.const_data_ptr() : nullptr;
  product.out = whole(out);
  return product;
}

Product CoreCall::narrowed(const at::Tensor& source, const at::Tensor& out) const {
  Product product;
  product.orientation = Orientation::along_across;
  product.part[0] = {by_head(source, query_width),
                     {w.width.const_data_ptr(), 0, e, query_width * e, narrow(query_width)},
                     narrow(query_width)};
  product.parts = 1;
  product.heads = narrow(heads);
  product.rows = narrow(rows());
  product.columns = narrow(e);
  product.out = by_head(out, e);
  return product;
}

Product CoreCall::mixed_out(const at::Tensor& normed, const at::Tensor& m) const {
  Product product;
  product.orientation = Orientation::along_along;
  product.part[0] = {by_head(normed, value_width), weight_columns(w.out_weight, value_width), narrow(value_width)};
  product.parts = 1;
  product.heads = narrow(heads);
  product.rows = narrow(rows());
  product.columns = narrow(out_width);
  product.out = slot_rows(m);
  return product;
}

void append(ProductList& list, const Product& product) {
  TORCH_INTERNAL_ASSERT(list.count < kMostProducts);
  list.product[list.count++] = product;
}

void run(const ProductList& list, const at::Tensor& like) {
  const auto memory = scratch(multiply_workspace(list), like);
  C10_CUDA_CHECK(multiply(list, memory.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
}

}  // namespace dba::ops::cuda
