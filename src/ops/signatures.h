#pragma once

#include <string_view>
#include <tuple>

#include "ops/arguments.h"

/// The C++ types of the registered schemas, in the order of schema.cc.
namespace dba::ops::signature {

using Tensor = at::Tensor;

using DropoutMask = Tensor(const Tensor& rng, double p, int64_t site, const Tensor& sequence, const Tensor& first_token,
                           int64_t tokens, int64_t slots, at::ScalarType dtype);
using Fold = std::tuple<Tensor, Tensor>(const Tensor& z, const Tensor& weight, const Optional& bias, int64_t heads,
                                        double scale);
using FoldStack = std::tuple<Tensor, Tensor>(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                             const Optional& tail, const Optional& tail_bias, int64_t heads,
                                             double scale);
using FoldStackBackward = std::vector<Tensor>(const Tensor& z, at::TensorList weights, const OptionalList& biases,
                                              int64_t heads, double scale, const Optional& drows,
                                              const Optional& dbias);
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
using AttentionForward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const OptionalList& weights,
    const Tensor& restore_rows, const Optional& restore_bias, const Optional& out_bias, int64_t heads, bool linear,
    double dropout, const Optional& rng);
using AttentionBackward = std::vector<Tensor>(const Tensor& x, const Tensor& begin, const Tensor& end,
                                              const Optional& each, const Optional& each_bias, const Optional& shared,
                                              const Optional& shared_bias, int64_t linear_rows,
                                              const OptionalList& weights, const Tensor& restore_rows,
                                              const Optional& restore_bias, const Optional& out_bias, int64_t heads,
                                              bool linear, double dropout, const Optional& rng, const Tensor& c,
                                              const Tensor& r, const Tensor& lse, const Tensor& m, const Tensor& dy,
                                              const Optional& dcompressed);
using AttentionBackwardSlots = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& begin, const Tensor& end,
                                                          const Tensor& restore_rows, const Optional& restore_bias,
                                                          const Optional& out_bias, int64_t heads, bool linear,
                                                          double dropout, const Optional& rng, const Tensor& dy);
using AttentionBackwardTokens = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor& x, const Tensor& begin, const Tensor& end, const Optional& each, const Optional& each_bias,
    const Optional& shared, const Optional& shared_bias, int64_t linear_rows, const Tensor& restore_rows,
    const Optional& restore_bias, const Tensor& m, int64_t heads, bool linear, double dropout, const Optional& rng,
    const Tensor& c, const Tensor& r, const Tensor& lse, const Optional& dc, const Optional& dr, const Tensor& dy);
using ResidualNorm = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor& residual, const Optional& branch,
                                                                const Optional& branch_bias, const Optional& weight,
                                                                const Optional& bias, double eps, double dropout,
                                                                const Optional& rng, bool keep_sum,
                                                                std::optional<at::ScalarType> dtype);
using ResidualNormBackward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
    const Tensor& x, const Optional& branch, const Optional& branch_bias, const Optional& weight, const Optional& bias,
    const Tensor& mean, const Tensor& rstd, double dropout, const Optional& rng, const Optional& dsum, const Tensor& dy,
    std::optional<at::ScalarType> branch_dtype);
using ResidualSum = Tensor(const Tensor& residual, const Tensor& branch, const Optional& branch_bias, double dropout,
                           const Optional& rng);
using ResidualSumBackward = std::tuple<Tensor, Tensor>(const Tensor& dsum, const Optional& branch_bias, double dropout,
                                                       const Optional& rng, at::ScalarType branch_dtype);
using Activate = Tensor(const Tensor& hidden, const Optional& bias, std::string_view kind, double dropout,
                        const Optional& rng);
using ActivateBackward = std::tuple<Tensor, Tensor>(const Tensor& hidden, const Optional& bias, std::string_view kind,
                                                    double dropout, const Optional& rng, const Tensor& dy);

}  // namespace dba::ops::signature
