#pragma once

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <optional>
#include <vector>

#include "dba/ops.h"

/// Between the flat arguments of the registered schemas and the structs of dba/ops.h.
namespace dba::ops {

using Optional = std::optional<at::Tensor>;
using OptionalList = c10::List<std::optional<at::Tensor>>;

inline at::Tensor value_or_absent(const Optional& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

inline Optional optional(const at::Tensor& tensor) {
  return tensor.defined() ? Optional(tensor) : Optional();
}

inline Sequences sequences_of(const at::Tensor& x, const at::Tensor& begin, const at::Tensor& end) {
  return {begin, end, x.dim() > 0 ? x.size(0) : 0};
}

inline ScoreRows score_rows(const Optional& each, const Optional& each_bias, const Optional& shared,
                            const Optional& shared_bias, int64_t linear) {
  return {value_or_absent(each), value_or_absent(each_bias), value_or_absent(shared), value_or_absent(shared_bias),
          linear};
}

inline Dropout dropout_of(double p, const Optional& rng) {
  return {p, value_or_absent(rng)};
}

constexpr size_t kCoreWeights = 13;

/// The members of CoreWeights in the order of the schema.
inline std::array<at::Tensor CoreWeights::*, kCoreWeights> core_weight_members() {
  return {&CoreWeights::query_weight, &CoreWeights::query_bias,      &CoreWeights::key_weight,
          &CoreWeights::key_bias,     &CoreWeights::value_weight,    &CoreWeights::value_bias,
          &CoreWeights::width,        &CoreWeights::compress_weight, &CoreWeights::compress_bias,
          &CoreWeights::norm_weight,  &CoreWeights::norm_bias,       &CoreWeights::out_weight,
          &CoreWeights::other};
}

CoreWeights core_weights(const OptionalList& list);
OptionalList core_weight_list(const CoreWeights& weights);

/// Inside the operators autocast must not touch the products: types are settled at the edge.
struct SettledTypes {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

/// Refuses when the user insists on a fused kernel and only the reference is there; warns once of a GPU's.
void require_reference_allowed(const char* function, const at::Tensor& x);

template <class Signature>
auto typed_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace dba::ops
