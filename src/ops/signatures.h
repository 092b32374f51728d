#pragma once

#include <tuple>

#include "ops/arguments.h"

/// The C++ types of the registered schemas, in the order of schema.cc.
namespace dba::ops::signature {

using Tensor = at::Tensor;

using DropoutMask = Tensor(const Tensor& rng, double p, int64_t site, const Tensor& sequence, const Tensor& first_token,
                           int64_t tokens, int64_t slots, at::ScalarType dtype);
using Fold = std::tuple<Tensor, Tensor>(const Tensor& z, const Tensor& weight, const Optional& bias, int64_t heads,
                                        double scale);
using Compress = std::tuple<Tensor, Tensor, Tensor>(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                    const Optional& each, const Optional& each_bias,
                                                    const Optional& shared, const Optional& shared_bias, int64_t linear,
                                                    double dropout, const Optional& rng);
using CompressBackward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear, double dropout, const Optional& rng,
    const Tensor& c, const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Optional& dlse);
using Core = std::tuple<Tensor, Tensor>(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                        double dropout, const Optional& rng);
using CoreBackward = std::vector<Tensor>(const Tensor& c, const Tensor& r, const OptionalList& weights, int64_t heads,
                                         double dropout, const Optional& rng, const Optional& dm,
                                         const Optional& dcompressed);
using Restore = Tensor(const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows,
                       const Optional& bias, const Tensor& m, const Optional& out_bias, int64_t heads, bool linear,
                       double dropout, const Optional& rng);
using RestoreBackward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Tensor& rows, const Optional& bias, const Tensor& m,
    const Optional& out_bias, int64_t heads, bool linear, double dropout, const Optional& rng, const Tensor& dy);
using Attention = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& begin, const Tensor& end,
                                             const Optional& each, const Optional& each_bias, const Optional& shared,
                                             const Optional& shared_bias, int64_t linear_rows,
                                             const OptionalList& weights, const Tensor& restore_rows,
                                             const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                             bool linear, double dropout, const Optional& rng);
using AttentionBackwardSlots = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                          const Tensor& restore_rows, const Optional& restore_bias,
                                                          const Optional& out_bias, int64_t heads, bool linear,
                                                          double dropout, const Optional& rng, const Tensor& dy);
using AttentionBackwardTokens = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const Tensor& restore_rows,
    const Optional& restore_bias, const Tensor& m, int64_t heads, bool linear, double dropout, const Optional& rng,
    const Tensor& c, const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Tensor& dy);

}  // namespace dba::ops::signature
