#include "zoo/kernel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "nn/transformed.h"
#include "ops/checks.h"
#include "ops/kept_tensors.h"
#include "zoo/entries_together.h"

namespace dba::zoo {
namespace {

at::Tensor apart(const at::Tensor& x, int64_t heads) {
  const auto batch = x.size(0), n = x.size(1), width = x.size(2) / heads;
  return x.reshape({batch, n, heads, width}).transpose(1, 2).reshape({batch * heads, n, width});
}
at::Tensor joined(const at::Tensor& x, int64_t heads) {
  const auto batch = x.size(0) / heads, n = x.size(1), width = x.size(2);
  return x.reshape({batch, heads, n, width}).transpose(1, 2).reshape({batch, n, heads * width});
}

/// Either way; its gradient goes the other one.
struct HeadsMoved : torch::autograd::Function<HeadsMoved> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t heads,
                            bool to_apart) {
    context->saved_data["heads"] = heads;
    context->saved_data["to_apart"] = to_apart;
    return to_apart ? apart(x, heads) : joined(x, heads);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto heads = context->saved_data["heads"].toInt();
    const bool was_to_apart = context->saved_data["to_apart"].toBool();
    return {HeadsMoved::apply(gradients[0], heads, !was_to_apart), {}, {}};
  }
};

}  // namespace

at::Tensor heads_apart(const at::Tensor& x, int64_t heads) {
  return is_transformed(x) ? apart(x, heads) : HeadsMoved::apply(x, heads, true);
}

at::Tensor heads_joined(const at::Tensor& x, int64_t heads) {
  return is_transformed(x) ? joined(x, heads) : HeadsMoved::apply(x, heads, false);
}

Summing::Summing(at::ScalarType type) : given_(type) {
  if (type == at::kHalf) {
    as_given_.emplace(c10::autocast_dispatch_keyset);
  }
}

at::Tensor kernel_attention(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& v, const at::Tensor& valid,
                            double eps) {
  // A column of ones behind the values: the weights' own sums beside theirs. On a GPU as many as fill the rows up.
  const auto more = v.is_cuda() ? kEntriesTogether - v.size(3) % kEntriesTogether : 1;
  const auto ones = [&] {
    return valid.to(v.scalar_type()).unsqueeze(1).unsqueeze(3).expand({-1, v.size(1), -1, more});
  };
  const auto more_v = valid.defined() ? torch::cat({v, ones()}, 3) : at::constant_pad_nd(v, {0, more}, 1);
  const auto sums = at::add(torch::matmul(f_k.transpose(2, 3), more_v), more_v.sum(2, /*keepdim=*/true), eps);
  const auto all = at::add(torch::matmul(f_q, sums), sums.sum(2, /*keepdim=*/true), eps);  // (B, H, n, w + more)
  const auto total = all.narrow(3, v.size(3), 1);
  return all.narrow(3, 0, v.size(3)) / (valid.defined() ? total.masked_fill(total.eq(0), 1) : total);
}

at::Tensor dot_by_heads(const at::Tensor& x, const at::Tensor& y, int64_t heads) {
  const auto own = ops::kept_tensor(ops::KeptKey{"own_head", {heads}}, y.options(),
                                    [&] { return torch::eye(heads, y.options()).unsqueeze(2); });  // (H, H, 1)
  const auto rows = (y.unflatten(-1, {heads, -1}) * own).flatten(-2).flatten(1, -2);  // (B, H or k·H, H·w)
  const auto all = torch::matmul(rows, x.transpose(1, 2)).transpose(1, 2);
  return y.dim() == 3 ? all : all.unflatten(2, {y.size(1), heads});
}

at::Tensor scale_by_heads(const at::Tensor& x, const at::Tensor& weight) {
  return (x.unflatten(2, {weight.size(2), -1}) * weight.unsqueeze(3)).flatten(2);
}

bool are_few(at::IntArrayRef queries, at::Device device) {
  constexpr int64_t kMostLaunching = int64_t{1} << 22;
  return queries[1] <= queries[2] || (device.is_cuda() && queries[0] * queries[1] * queries[2] <= kMostLaunching);
}

at::Tensor attend_by_sums(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& x, int64_t heads,
                          torch::nn::Linear& w_v, torch::nn::Linear& w_o) {
  const auto d = x.size(2), width = d / heads;
  const auto widened = [&](const at::Tensor& t) {
    return t.defined() && t.scalar_type() == at::kHalf ? t.to(f_q.scalar_type()) : t;
  };
  const auto tokens = widened(x);
  const auto weight_v = widened(w_v->weight), bias_v = widened(w_v->bias);
  const auto weight_o = widened(w_o->weight), bias_o = widened(w_o->bias);
  const auto weighed = torch::matmul(f_k.transpose(1, 2), tokens).unflatten(1, {heads, width});  // (B, H, w, d)
  auto sums = torch::matmul(weighed, weight_v.view({heads, width, d}).transpose(1, 2));          // (B, H, w, w)
  if (bias_v.defined()) {
    sums = sums + f_k.sum(1).view({-1, heads, width, 1}) * bias_v.view({heads, 1, width});
  }
  const auto m = torch::matmul(sums, weight_o.t().view({heads, width, d})).flatten(1, 2);  // (B, d, d)
  return bias_o.defined() ? torch::baddbmm(bias_o, f_q, m) : torch::bmm(f_q, m);
}

at::Tensor dot_rows(const at::Tensor& a, const at::Tensor& b) {
  const auto type = a.scalar_type();
  const auto products = type == at::kHalf ? a.to(at::kFloat) * b : a * b;
  return products.sum({-1}, /*keepdim=*/true, ops::accumulation_type(type));
}

at::Tensor unit_rows(const at::Tensor& x) {
  const auto length = x.norm(2, {-1}, /*keepdim=*/true);
  return x / length.masked_fill(length.eq(0), 1);
}

at::Tensor seeded_normal(at::IntArrayRef sizes, int64_t seed) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::normal(0.0, 1.0, sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

at::Tensor orthogonal_features(int64_t count, int64_t width, int64_t seed) {
  const auto groups = (count + width - 1) / width;
  const auto gaussian = seeded_normal({2, groups, width, width}, seed);
  // With the signs of R's diagonal the orthogonal matrices are uniform; without them they lean to one side.
  const auto [q, r] = at::linalg_qr(gaussian[0]);
  const auto directions = (q * r.diagonal(0, 1, 2).sign().unsqueeze(1)).transpose(1, 2);
  const auto lengths = gaussian[1].norm(2, 2, /*keepdim=*/true);
  return (directions * lengths).flatten(0, 1).narrow(0, 0, count).to(at::kFloat).contiguous();
}

}  // namespace dba::zoo
