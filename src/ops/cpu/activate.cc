#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu_backward_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/activate_call.h"
#include "ops/checks.h"
#include "ops/cpu/activate_rows.h"
#include "ops/cpu/activate_tile.h"
#include "ops/fused.h"
#include "ops/reference/activate.h"
#include "ops/signatures.h"

/// One pass over the hidden tokens, in tiles that stay in cache between its steps. Rows are cut into chunks, each
/// of which has a partial sum over rows, and chunks into tiles of whole quads of rows, which share a Philox call per
/// column. Neither depends on the number of threads, and so the bits do not.
namespace dba::ops {
namespace {

using namespace cpu;
using at::Tensor;

/// Calls body with an element of the tokens.
template <class Body>
void for_type(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kDouble:
      return body(double());
    case at::kHalf:
      return body(at::Half());
    case at::kBFloat16:
      return body(at::BFloat16());
    default:
      return body(float());
  }
}

std::string obstacle(const Tensor& hidden) {
  const auto type = hidden.scalar_type();
  const bool known = type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
  return known ? "" : std::string("the tokens' type has no kernel: ") + c10::toString(type);
}

/// `entries` as a tensor that owns nothing.
template <class A>
Tensor piece(A* entries, int64_t count) {
  return at::from_blob(entries, {count}, at::TensorOptions().dtype(c10::CppTypeToScalarType<A>::value));
}

/// x becomes act(x), to be rounded to T.
template <class T, class A>
void activate_entries(ActivationKind kind, A* x, int64_t count) {
  if (kind == ActivationKind::relu) {
    for (int64_t i = 0; i < count; ++i) {
      x[i] = x[i] <= A(0) ? A(0) : x[i];
    }
    return;
  }
  if constexpr (sizeof(T) < sizeof(A)) {
    return kernels<A>().rounded_gelu(x, count);
  }
  for (int64_t first = 0; first < count; first += kPieceEntries) {
    auto part = piece(x + first, std::min(kPieceEntries, count - first));
    at::cpu::gelu_out(part, part);
  }
}

/// gradient, of act(x), becomes that of x.
template <class T, class A>
void differentiate_entries(ActivationKind kind, A* x, A* gradient, int64_t count) {
  if (kind == ActivationKind::relu) {
    for (int64_t i = 0; i < count; ++i) {
      gradient[i] = x[i] <= A(0) ? A(0) : gradient[i];
    }
    return;
  }
  if constexpr (sizeof(T) < sizeof(A)) {
    return kernels<A>().rounded_gelu_gradient(x, gradient, count);
  }
  for (int64_t first = 0; first < count; first += kPieceEntries) {
    const auto size = std::min(kPieceEntries, count - first);
    auto part = piece(gradient + first, size);
    at::cpu::gelu_backward_out(part, part, piece(x + first, size));
  }
}

/// The bias in the accumulation type, or undefined.
template <class A>
Tensor wide_bias(const Tensor& bias) {
  return bias.defined() ? bias.to(c10::CppTypeToScalarType<A>::value).contiguous() : bias;
}

template <class T>
void forward(const ActivateCall& call, const Tensor& y) {
  using A = Wide<T>;
  const auto rows = call.hidden.size(0);
  const auto d = call.hidden.size(1);
  const auto hidden = call.hidden.contiguous();
  const auto bias = wide_bias<A>(call.bias);
  const auto* const from = hidden.const_data_ptr<T>();
  const auto* const added = bias.defined() ? bias.template const_data_ptr<A>() : nullptr;
  auto* const to = y.mutable_data_ptr<T>();
  const MaskSource<A> source(call.dropout, kSiteActivation);
  const auto height = rows_per_tile(d);
  const auto chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  at::parallel_for(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    ActivateTile<T> tile(source, height, d);
    for_tiles(first_chunk, last_chunk, rows, height, [&](int64_t row, int64_t count) {
      tile.read(from + row * d, added, count);
      activate_entries<T>(call.kind, tile.x, count * d);
      tile.drop(tile.x, row, count);
      tile.narrow(tile.x, to + row * d, count * d);
    });
  });
}

/// Returns the sum of dhidden over rows, in the accumulation type.
template <class T>
Tensor backward(const ActivateCall& call, const Tensor& dy, const Tensor& dhidden) {
  using A = Wide<T>;
  const auto rows = call.hidden.size(0);
  const auto d = call.hidden.size(1);
  const auto hidden = call.hidden.contiguous();
  const auto above = dy.contiguous();
  const auto bias = wide_bias<A>(call.bias);
  const auto* const from = hidden.const_data_ptr<T>();
  const auto* const gradients = above.template const_data_ptr<T>();
  const auto* const added = bias.defined() ? bias.template const_data_ptr<A>() : nullptr;
  auto* const to = dhidden.mutable_data_ptr<T>();
  const MaskSource<A> source(call.dropout, kSiteActivation);
  const auto height = rows_per_tile(d);
  const auto chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
  const auto options = call.hidden.options().dtype(c10::CppTypeToScalarType<A>::value);
  const Tensor partial = at::zeros({chunks, d}, options);
  auto* const partials = partial.mutable_data_ptr<A>();
  at::parallel_for(0, chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
    ActivateTile<T> tile(source, height, d);
    auto* const gradient = tile.take(height * d);
    for_tiles(first_chunk, last_chunk, rows, height, [&](int64_t row, int64_t count) {
      tile.read(from + row * d, added, count);
      tile.widen(gradients + row * d, gradient, count * d);
      tile.drop(gradient, row, count);
      differentiate_entries<T>(call.kind, tile.x, gradient, count * d);
      tile.narrow(gradient, to + row * d, count * d);
      auto* const sum = partials + row / kRowsPerChunk * d;
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < d; ++j) {
          sum[j] += gradient[i * d + j];
        }
      }
    });
  });
  return total_of_chunks(partials, chunks, d, d);
}

Tensor activate_cpu(const Tensor& hidden, const Optional& bias, std::string_view kind, double p, const Optional& rng) {
  const SettledTypes settled;
  const auto call = activate_call(hidden, bias, kind, p, rng);
  if (!use_fused("activate", obstacle(hidden))) {
    return reference::activate(call);
  }
  const auto y = at::empty(hidden.sizes(), hidden.options());
  if (by_rows(call)) {
    forward_by_rows(call, y);
    return y;
  }
  for_type(hidden.scalar_type(), [&](auto element) { forward<decltype(element)>(call, y); });
  return y;
}

std::tuple<Tensor, Tensor> activate_backward_cpu(const Tensor& hidden, const Optional& bias, std::string_view kind,
                                                 double p, const Optional& rng, const Tensor& dy) {
  const SettledTypes settled;
  const auto call = activate_saved(hidden, bias, kind, p, rng);
  if (!use_fused("activate_backward", obstacle(hidden))) {
    const auto gradients = reference::activate_backward(call, dy);
    return {gradients.hidden, gradients.bias};
  }
  const auto dhidden = at::empty(hidden.sizes(), hidden.options());
  Tensor sum;
  if (by_rows(call) && dy.scalar_type() == at::kBFloat16) {
    sum = backward_by_rows(call, dy, dhidden);
  } else {
    for_type(hidden.scalar_type(), [&](auto element) { sum = backward<decltype(element)>(call, dy, dhidden); });
  }
  return {dhidden, call.bias.defined() ? sum.to(call.bias.scalar_type()) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("activate", activate_cpu);
  m.impl("activate_backward", activate_backward_cpu);
}

}  // namespace dba::ops
