#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>

#include "ops/checks.h"
#include "ops/cpu/residual_rows.h"
#include "ops/fused.h"
#include "ops/residual_norm_call.h"
#include "ops/signatures.h"

/// One pass over the tokens. Work is divided into quads of rows, which share a Philox call per column, and sums over
/// rows into chunks of kQuadsPerChunk quads, whatever the number of threads: the bits do not depend on it.
namespace dba::ops {
namespace {

using namespace cpu;
using at::Tensor;

constexpr int64_t kQuadsPerChunk = 32;

template <class R>
using Wide = std::conditional_t<std::is_same_v<R, double>, double, float>;

/// Calls body with a residual and a branch element.
template <class Body>
void for_types(at::ScalarType residual, at::ScalarType branch, const Body& body) {
  if (residual == at::kDouble) {
    body(double(), double());
  } else if (residual == at::kHalf) {
    body(at::Half(), at::Half());
  } else if (residual == at::kBFloat16) {
    body(at::BFloat16(), at::BFloat16());
  } else if (branch == at::kHalf) {
    body(float(), at::Half());
  } else if (branch == at::kBFloat16) {
    body(float(), at::BFloat16());
  } else {
    body(float(), float());
  }
}

std::string obstacle(const Tensor& residual) {
  const auto type = residual.scalar_type();
  const bool known = type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
  return known ? "" : std::string("the tokens' type has no kernel: ") + c10::toString(type);
}

template <class T>
T* rows_or_null(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? tensor.mutable_data_ptr<T>() : nullptr;
}

template <class T>
const T* const_rows_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

Tensor contiguous_or_absent(const Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

/// Writes the sum and, where there is a y, its norm.
template <class R, class B>
void forward(const ResidualNormCall& call, const reference::ResidualNorm& out) {
  using A = Wide<R>;
  const auto rows = call.residual.size(0);
  const auto d = call.residual.size(1);
  const auto residuals = call.residual.contiguous();
  const auto branches = contiguous_or_absent(call.branch.value);
  const auto* const residual = residuals.const_data_ptr<R>();
  const auto* const branch = const_rows_or_null<B>(branches);
  const auto options = call.residual.options();
  const Columns<A> branch_bias(call.branch.bias, 0, d, options), weight(call.norm.weight, 1, d, options),
      bias(call.norm.bias, 0, d, options);
  const QuadMask<A> source(call.branch.dropout, d);
  auto* const sum = rows_or_null<R>(out.sum);
  auto* const y = rows_or_null<B>(out.y);
  auto* const mean = rows_or_null<A>(out.mean);
  auto* const rstd = rows_or_null<A>(out.rstd);
  at::parallel_for(0, (rows + kQuad - 1) / kQuad, kQuadsPerChunk, [&](int64_t from, int64_t to) {
    std::vector<A> masks(source.size()), h(d);
    for (int64_t quad = from; quad < to; ++quad) {
      if (source.active()) {
        source.draw(quad, masks);
      }
      for (int64_t i = quad * kQuad; i < std::min(rows, (quad + 1) * kQuad); ++i) {
        sum_row(h.data(), residual + i * d, branch == nullptr ? nullptr : branch + i * d, branch_bias.data,
                source.active() ? masks.data() + i % kQuad * d : nullptr, d);
        if (sum != nullptr) {
          for (int64_t j = 0; j < d; ++j) {
            sum[i * d + j] = static_cast<R>(h[j]);
            h[j] = static_cast<A>(sum[i * d + j]);
          }
        }
        if (y == nullptr) {
          continue;
        }
        const A centre = row_sum<A>(d, [&](int64_t j) { return h[j]; }) / static_cast<A>(d);
        const A variance =
            row_sum<A>(d, [&](int64_t j) { return (h[j] - centre) * (h[j] - centre); }) / static_cast<A>(d);
        const A scale = A(1) / std::sqrt(variance + static_cast<A>(call.norm.eps));
        mean[i] = centre;
        rstd[i] = scale;
        for (int64_t j = 0; j < d; ++j) {
          y[i * d + j] = static_cast<B>((h[j] - centre) * scale * weight.data[j] + bias.data[j]);
        }
      }
    }
  });
}

/// Sums over rows, in the accumulation type: of the branch's gradient, of dy ∘ normed, of dy.
enum Sum : int64_t { kBranchBias, kWeight, kBias, kSums };

/// dy absent: backward of the sum alone, where saved.x is not read. `dresidual` and `dbranch` may be undefined.
template <class R, class B>
Tensor backward(const reference::ResidualNormSaved& saved, const Tensor& dsum, const Tensor& dy,
                const Tensor& dresidual, const Tensor& dbranch) {
  using A = Wide<R>;
  const auto& shaped = dy.defined() ? dy : dsum;
  const auto rows = shaped.size(0);
  const auto d = shaped.size(1);
  const auto xs = contiguous_or_absent(saved.x);
  const auto branches = contiguous_or_absent(saved.branch.value);
  const auto dsums = contiguous_or_absent(dsum);
  const auto dys = contiguous_or_absent(dy);
  const auto* const x = const_rows_or_null<R>(xs);
  const auto* const branch = const_rows_or_null<B>(branches);
  const auto* const from_sum = const_rows_or_null<R>(dsums);
  const auto* const from_y = const_rows_or_null<B>(dys);
  const auto* const mean = const_rows_or_null<A>(saved.mean);
  const auto* const rstd = const_rows_or_null<A>(saved.rstd);
  auto* const to_residual = rows_or_null<R>(dresidual);
  auto* const to_branch = rows_or_null<B>(dbranch);
  const QuadMask<A> source(saved.branch.dropout, d);
  const bool sum_branch = saved.branch.bias.defined();

  const auto quads = (rows + kQuad - 1) / kQuad;
  const auto chunks = (quads + kQuadsPerChunk - 1) / kQuadsPerChunk;
  const at::TensorOptions options = shaped.options().dtype(c10::CppTypeToScalarType<A>::value);
  const Columns<A> branch_bias(saved.branch.bias, 0, d, options), weight(saved.norm.weight, 1, d, options);
  const Tensor partial = at::zeros({chunks, kSums, d}, options);
  auto* const partials = partial.mutable_data_ptr<A>();
  at::parallel_for(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    std::vector<A> masks(source.size()), h(d), dh(d);
    for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
      auto* const sums = partials + chunk * kSums * d;
      for (auto quad = chunk * kQuadsPerChunk; quad < std::min(quads, (chunk + 1) * kQuadsPerChunk); ++quad) {
        if (source.active()) {
          source.draw(quad, masks);
        }
        for (int64_t i = quad * kQuad; i < std::min(rows, (quad + 1) * kQuad); ++i) {
          const auto* const mask = source.active() ? masks.data() + i % kQuad * d : nullptr;
          if (from_y == nullptr) {
            for (int64_t j = 0; j < d; ++j) {
              dh[j] = static_cast<A>(from_sum[i * d + j]);
            }
          } else {
            const auto* const gradient = from_y + i * d;
            sum_row(h.data(), x + i * d, branch == nullptr ? nullptr : branch + i * d, branch_bias.data, mask, d);
            scale_row(gradient, weight.data, mean[i], rstd[i], h.data(), dh.data(), sums + kWeight * d,
                      sums + kBias * d, d);
            const A flat = row_sum<A>(d, [&](int64_t j) { return dh[j]; }) / static_cast<A>(d);
            const A along = row_sum<A>(d, [&](int64_t j) { return dh[j] * h[j]; }) / static_cast<A>(d);
            centre_row(dh.data(), h.data(), flat, along, rstd[i], d);
            if (from_sum != nullptr) {
              add_row<A, R>(dh.data(), from_sum + i * d, d);
            }
          }
          if (to_residual != nullptr) {
            std::transform(dh.begin(), dh.end(), to_residual + i * d, [](A value) { return static_cast<R>(value); });
          }
          if (to_branch == nullptr && !sum_branch) {
            continue;
          }
          if (mask != nullptr) {
            std::transform(dh.begin(), dh.end(), mask, dh.begin(), std::multiplies<A>());
          }
          add_row<A, A>(sums + kBranchBias * d, dh.data(), d);
          if (to_branch != nullptr) {
            std::transform(dh.begin(), dh.end(), to_branch + i * d, [](A value) { return static_cast<B>(value); });
          }
        }
      }
    }
  });
  const Tensor total = at::zeros({kSums, d}, options);
  auto* const totals = total.mutable_data_ptr<A>();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t k = 0; k < kSums * d; ++k) {
      totals[k] += partials[chunk * kSums * d + k];
    }
  }
  return total;
}

/// The share of `sums` that belongs to a weight, in its type.
Tensor gradient_of(const Tensor& weight, const Tensor& sums, Sum which) {
  return weight.defined() ? sums.select(0, which).to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                          : Tensor();
}

std::tuple<Tensor, Tensor, Tensor, Tensor> residual_norm_cpu(const Tensor& residual, const Optional& branch,
                                                             const Optional& branch_bias, const Optional& weight,
                                                             const Optional& bias, double eps, double p,
                                                             const Optional& rng, bool keep_sum,
                                                             std::optional<at::ScalarType> dtype) {
  const SettledTypes settled;
  const auto call = residual_norm_call(residual, branch, branch_bias, weight, bias, eps, p, rng, keep_sum, dtype);
  reference::ResidualNorm out;
  if (use_fused("residual_norm", obstacle(residual))) {
    const auto rows = residual.size(0);
    const auto statistics = residual.options().dtype(accumulation_type(residual.scalar_type()));
    out = {at::empty({keep_sum ? rows : 0, residual.size(1)}, residual.options()),
           at::empty(residual.sizes(), residual.options().dtype(call.dtype)), at::empty({rows}, statistics),
           at::empty({rows}, statistics)};
    for_types(residual.scalar_type(), call.dtype,
              [&](auto r, auto b) { forward<decltype(r), decltype(b)>(call, out); });
  } else {
    out = reference::residual_norm(residual, call.branch, call.norm, keep_sum, call.dtype);
  }
  return {out.sum, out.y, out.mean, out.rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> residual_norm_backward_cpu(
    const Tensor& x, const Optional& branch, const Optional& branch_bias, const Optional& weight, const Optional& bias,
    const Tensor& mean, const Tensor& rstd, double p, const Optional& rng, const Optional& dsum, const Tensor& dy,
    std::optional<at::ScalarType> branch_dtype) {
  const SettledTypes settled;
  const auto saved = residual_norm_saved(x, branch, branch_bias, weight, bias, mean, rstd, p, rng, branch_dtype);
  if (!use_fused("residual_norm_backward", obstacle(x))) {
    const auto gradients = reference::residual_norm_backward(saved, value_or_absent(dsum), dy);
    return {gradients.residual, gradients.branch, gradients.branch_bias, gradients.weight, gradients.bias};
  }
  const auto dresidual = at::empty(x.sizes(), x.options());
  const auto dbranch = branch_dtype ? at::empty(x.sizes(), x.options().dtype(*branch_dtype)) : Tensor();
  Tensor sums;
  for_types(x.scalar_type(), dy.scalar_type(), [&](auto r, auto b) {
    sums = backward<decltype(r), decltype(b)>(saved, value_or_absent(dsum), dy, dresidual, dbranch);
  });
  return {dresidual, dbranch, gradient_of(saved.branch.bias, sums, kBranchBias),
          gradient_of(saved.norm.weight, sums, kWeight), gradient_of(saved.norm.bias, sums, kBias)};
}

Tensor residual_sum_cpu(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double p,
                        const Optional& rng) {
  const SettledTypes settled;
  const auto added = residual_sum_branch(residual, branch, branch_bias, p, rng);
  if (!use_fused("residual_sum", obstacle(residual))) {
    return reference::residual_sum(residual, added);
  }
  const reference::ResidualNorm out{at::empty(residual.sizes(), residual.options()), {}, {}, {}};
  const ResidualNormCall call{residual, added, {}, /*keep_sum=*/true, branch.scalar_type()};
  for_types(residual.scalar_type(), branch.scalar_type(),
            [&](auto r, auto b) { forward<decltype(r), decltype(b)>(call, out); });
  return out.sum;
}

std::tuple<Tensor, Tensor> residual_sum_backward_cpu(const Tensor& dsum, const Optional& branch_bias, double p,
                                                     const Optional& rng, at::ScalarType branch_dtype) {
  const SettledTypes settled;
  const Branch branch{{}, value_or_absent(branch_bias), dropout_of(p, rng)};
  if (!use_fused("residual_sum_backward", obstacle(dsum))) {
    const auto gradients = reference::residual_sum_backward(dsum, branch, branch_dtype);
    return {gradients.branch, gradients.branch_bias};
  }
  const auto dbranch = at::empty(dsum.sizes(), dsum.options().dtype(branch_dtype));
  Tensor sums;
  for_types(dsum.scalar_type(), branch_dtype, [&](auto r, auto b) {
    sums = backward<decltype(r), decltype(b)>({{}, branch, {}, {}, {}, branch_dtype}, dsum, {}, {}, dbranch);
  });
  return {dbranch, gradient_of(branch.bias, sums, kBranchBias)};
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("residual_norm", residual_norm_cpu);
  m.impl("residual_norm_backward", residual_norm_backward_cpu);
  m.impl("residual_sum", residual_sum_cpu);
  m.impl("residual_sum_backward", residual_sum_backward_cpu);
}

}  // namespace dba::ops
