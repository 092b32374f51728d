#include "ops/cuda/core_backward.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/cuda/core_projections.h"

namespace dba::ops::cuda {
namespace {

using at::Tensor;

/// What the attention between slots gives back, heads side by side.
struct SlotGradients {
  Tensor dq, dk, dv;              // (B·d_p, H·w)
  Tensor dq_narrow, dk_narrow;    // (B·d_p, H·e) behind R
  Tensor normed, dnorm_products;  // (B·d_p, H·w_v)
};

SlotGradients attend_backward(const CoreCall& call, const CoreDevice& device, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& dnormed, const Tensor& dcompressed) {
  SlotGradients out;
  out.dq = call.joined(call.query_width);
  out.dk = call.joined(call.query_width);
  out.dv = call.joined(call.value_width);
  out.normed = call.joined(call.value_width);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  CoreAttendBackwardArguments given{};
  given.element = call.element();
  given.batch = narrow(call.batch);
  given.heads = narrow(call.heads);
  given.d_p = narrow(call.d_p);
  given.q = q.const_data_ptr<float>();
  given.k = k.const_data_ptr<float>();
  given.v = v.const_data_ptr<float>();
  given.query_width = narrow(call.query_width);
  given.value_width = narrow(call.value_width);
  given.e = narrow(call.e);
  Tensor dmixed = dnormed;
  if (call.released) {
    // The LayerNorm joins the heads, which are apart in the rest.
    dmixed = call.joined(call.value_width);
    out.dnorm_products = call.joined(call.value_width);
    auto norm = attend_arguments(call, q, k, v, out.normed);
    norm.dnormed = dnormed.const_data_ptr<float>();
    norm.dnorm_products = out.dnorm_products.mutable_data_ptr<float>();
    norm.dmixed = dmixed.mutable_data_ptr<float>();
    C10_CUDA_CHECK(core_attend(norm, device, stream));
  } else {
    given.mixed = out.normed.mutable_data_ptr<float>();
  }
  if (call.w.width.defined()) {
    out.dq_narrow = call.joined(call.e);
    out.dk_narrow = call.joined(call.e);
    given.width = call.w.width.const_data_ptr();
    given.dq_narrow = out.dq_narrow.mutable_data_ptr<float>();
    given.dk_narrow = out.dk_narrow.mutable_data_ptr<float>();
  }
  given.dropout = call.dropout();
  given.dmixed = dmixed.const_data_ptr<float>();
  given.dcompressed = dcompressed.defined() ? dcompressed.const_data_ptr<float>() : nullptr;
  given.dq = out.dq.mutable_data_ptr<float>();
  given.dk = out.dk.mutable_data_ptr<float>();
  given.dv = out.dv.mutable_data_ptr<float>();
  C10_CUDA_CHECK(core_attend_backward(given, device, stream));
  return out;
}

/// The gradient of what W_O multiplies: dM_h W_O,h.
Product of_mixed(const CoreCall& call, const Tensor& dm, const Tensor& out) {
  Product product;
  product.orientation = Orientation::along_across;
  product.part[0] = {call.slot_rows(dm), CoreCall::weight_columns(call.w.out_weight, call.value_width),
                     narrow(call.out_width)};
  product.parts = 1;
  product.heads = narrow(call.heads);
  product.rows = narrow(call.rows());
  product.columns = narrow(call.value_width);
  product.out = call.by_head(out, call.value_width);
  return product;
}

/// Aᵀ B over all rows: the gradient of a weight, in the weight's type.
Product weight_gradient(const CoreCall& call, const HeadMatrix& a, const HeadMatrix& b, int64_t heads, int64_t rows,
                        int64_t columns, const HeadMatrix& out) {
  Product product;
  product.orientation = Orientation::across_across;
  product.part[0] = {a, b, narrow(call.rows())};
  product.parts = 1;
  product.heads = narrow(heads);
  product.rows = narrow(rows);
  product.columns = narrow(columns);
  product.out = out;
  product.wide_out = call.element() == Element::float32;
  return product;
}

/// dW and db of rows Wᵀ + b, all heads at once.
void append_project_gradients(ProductList& list, const CoreCall& call, const Tensor& drows, const Tensor& source,
                              const Tensor& weight, Tensor& dweight, const Tensor& bias, Tensor& dbias) {
  dweight = at::empty_like(weight);
  append(list, weight_gradient(call, CoreCall::whole(drows), CoreCall::whole(source), 1, weight.size(0), weight.size(1),
                               CoreCall::whole(dweight)));
  if (bias.defined()) {
    dbias = at::empty_like(bias);
    append(list, weight_gradient(call, CoreCall::whole(drows), {}, 1, weight.size(0), 1,
                                 CoreCall::vector(dbias, weight.size(0))));
  }
}

/// dc, dr where it is defined, dW and db of (W X)_h W_hᵀ + r b_h, one group.
void append_lift_gradients(ProductList& list, const CoreCall& call, int64_t group, const Tensor& dlifted,
                           const Tensor& weight, Tensor& dweight, const Tensor& bias, Tensor& dbias, const Tensor& dc,
                           const Tensor& dr) {
  const auto width = weight.size(0) / call.heads;
  const auto lifted = call.by_head(dlifted, width);
  Product of_summary;
  of_summary.orientation = Orientation::along_across;
  of_summary.part[0] = {lifted, CoreCall::weight_rows(weight, width), narrow(width)};
  of_summary.parts = 1;
  of_summary.heads = narrow(call.heads);
  of_summary.rows = narrow(call.rows());
  of_summary.columns = narrow(call.d);
  of_summary.out = call.summary(dc, group);
  append(list, of_summary);

  if (dr.defined()) {
    Product of_sums;
    of_sums.orientation = bias.defined() ? Orientation::along_along : Orientation::copy;
    if (bias.defined()) {
      of_sums.part[0] = {lifted, CoreCall::vector(bias, width), narrow(width)};
    }
    of_sums.parts = 1;
    of_sums.heads = narrow(call.heads);
    of_sums.rows = narrow(call.rows());
    of_sums.columns = 1;
    of_sums.out = call.row_sums(dr, group);
    append(list, of_sums);
  }

  dweight = at::empty_like(weight);
  append(list, weight_gradient(call, lifted, call.summary(call.c, group), call.heads, width, call.d,
                               CoreCall::weight_rows(dweight, width)));
  if (bias.defined()) {
    dbias = at::empty_like(bias);
    append(list, weight_gradient(call, lifted, call.row_sums(call.r, group), call.heads, width, 1,
                                 CoreCall::vector(dbias, width)));
  }
}

void append_out_gradient(ProductList& list, const CoreCall& call, const Tensor& dm, const Tensor& normed,
                         Tensor& dweight) {
  dweight = at::empty_like(call.w.out_weight);
  append(list, weight_gradient(call, call.slot_rows(dm), call.by_head(normed, call.value_width), call.heads,
                               call.out_width, call.value_width, CoreCall::weight_columns(dweight, call.value_width)));
}

/// Σ drowsᵢ Wᵢ over up to three projections of the same rows.
Product of_source(const CoreCall& call, std::initializer_list<std::pair<Tensor, Tensor>> drows_and_weights,
                  const Tensor& add, const Tensor& out) {
  Product product;
  product.orientation = Orientation::along_across;
  for (const auto& [drows, weight] : drows_and_weights) {
    product.part[product.parts++] = {CoreCall::whole(drows), CoreCall::whole(weight), narrow(weight.size(0))};
  }
  product.rows = narrow(call.rows());
  product.columns = narrow(out.size(-1));
  product.add = add.defined() ? add.const_data_ptr<float>() : nullptr;
  product.out = CoreCall::whole(out);
  return product;
}

reference::CoreGradients backward_paper(const CoreCall& call, const CoreDevice& device, const Tensor& dm,
                                        const Tensor& dcompressed, bool wants_dr) {
  const auto& w = call.w;
  reference::CoreGradients result;
  auto& grad = result.weights;
  const auto q = call.joined(call.query_width);
  const auto k = call.joined(call.query_width);
  const auto v = call.joined(call.value_width);
  const auto dmixed = call.joined(call.value_width);
  auto first = call.list();
  append_paper_projections(first, call, q, k, v);
  append(first, of_mixed(call, dm, dmixed));
  run(first, call.c);

  const auto slots = attend_backward(call, device, q, k, v, dmixed, dcompressed);

  result.dc = at::empty_like(call.c);
  result.dr = wants_dr ? at::empty_like(call.r) : Tensor();
  auto last = call.list();
  append_lift_gradients(last, call, 0, slots.dq, w.query_weight, grad.query_weight, w.query_bias, grad.query_bias,
                        result.dc, result.dr);
  if (call.cross) {
    append_project_gradients(last, call, slots.dk, call.other, w.key_weight, grad.key_weight, w.key_bias,
                             grad.key_bias);
    append_project_gradients(last, call, slots.dv, call.other, w.value_weight, grad.value_weight, w.value_bias,
                             grad.value_bias);
    grad.other = at::empty_like(call.other);
    append(last, of_source(call, {{slots.dk, w.key_weight}, {slots.dv, w.value_weight}}, {}, grad.other));
  } else {
    append_lift_gradients(last, call, 1, slots.dk, w.key_weight, grad.key_weight, w.key_bias, grad.key_bias, result.dc,
                          result.dr);
    append_lift_gradients(last, call, 2, slots.dv, w.value_weight, grad.value_weight, w.value_bias, grad.value_bias,
                          result.dc, result.dr);
  }
  append_out_gradient(last, call, dm, slots.normed, grad.out_weight);
  if (w.width.defined()) {
    grad.width = at::empty_like(w.width);
    const HeadMatrix out{grad.width.const_data_ptr(), 0, call.e, call.query_width * call.e, narrow(call.query_width)};
    auto of_width = weight_gradient(call, call.by_head(q, call.query_width), call.by_head(slots.dq_narrow, call.e),
                                    call.heads, call.query_width, call.e, out);
    of_width.part[of_width.parts++] = {call.by_head(k, call.query_width), call.by_head(slots.dk_narrow, call.e),
                                       narrow(call.rows())};
    append(last, of_width);
  }
  run(last, call.c);
  return result;
}

reference::CoreGradients backward_released(const CoreCall& call, const CoreDevice& device, const Tensor& dm,
                                           const Tensor& dcompressed, bool wants_dr) {
  const auto& w = call.w;
  reference::CoreGradients result;
  auto& grad = result.weights;
  const auto compressed = call.floats({call.rows(), call.compressed_width});
  const auto dnormed = call.joined(call.value_width);
  const auto [q, k, v] = project_released(call, compressed, of_mixed(call, dm, dnormed));
  const auto slots = attend_backward(call, device, q, k, v, dnormed, {});

  auto middle = call.list();
  const auto dlifted = call.floats({call.rows(), call.compressed_width});
  if (call.cross) {
    append(middle, of_source(call, {{slots.dq, w.query_weight}}, dcompressed, dlifted));
    grad.other = at::empty_like(call.other);
    append(middle, of_source(call, {{slots.dk, w.key_weight}, {slots.dv, w.value_weight}}, {}, grad.other));
  } else {
    append(middle, of_source(call, {{slots.dq, w.query_weight}, {slots.dk, w.key_weight}, {slots.dv, w.value_weight}},
                             dcompressed, dlifted));
  }
  const auto& source = call.cross ? call.other : compressed;
  append_project_gradients(middle, call, slots.dq, compressed, w.query_weight, grad.query_weight, w.query_bias,
                           grad.query_bias);
  append_project_gradients(middle, call, slots.dk, source, w.key_weight, grad.key_weight, w.key_bias, grad.key_bias);
  append_project_gradients(middle, call, slots.dv, source, w.value_weight, grad.value_weight, w.value_bias,
                           grad.value_bias);
  append_out_gradient(middle, call, dm, slots.normed, grad.out_weight);
  const auto width = call.heads * call.value_width;
  grad.norm_weight = at::empty_like(w.norm_weight);
  grad.norm_bias = at::empty_like(w.norm_bias);
  append(middle, weight_gradient(call, CoreCall::whole(slots.dnorm_products), {}, 1, width, 1,
                                 CoreCall::vector(grad.norm_weight, width)));
  append(middle,
         weight_gradient(call, CoreCall::whole(dnormed), {}, 1, width, 1, CoreCall::vector(grad.norm_bias, width)));
  run(middle, call.c);

  result.dc = at::empty_like(call.c);
  result.dr = wants_dr ? at::empty_like(call.r) : Tensor();
  auto last = call.list();
  append_lift_gradients(last, call, 0, dlifted, w.compress_weight, grad.compress_weight, w.compress_bias,
                        grad.compress_bias, result.dc, result.dr);
  run(last, call.c);
  return result;
}

}  // namespace

reference::CoreGradients core_backward(const CoreCall& call, const CoreDevice& device, const Tensor& dm,
                                       const Tensor& dcompressed, bool wants_dr) {
  const auto dmix =
      dm.defined() ? dm.contiguous() : at::zeros({call.batch, call.heads * call.d_p, call.out_width}, call.c.options());
  const auto dcomp = dcompressed.defined() ? dcompressed.contiguous() : dcompressed;
  return call.released ? backward_released(call, device, dmix, dcomp, wants_dr)
                       : backward_paper(call, device, dmix, dcomp, wants_dr);
}

}  // namespace dba::ops::cuda
