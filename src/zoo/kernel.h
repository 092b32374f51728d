#pragma once

#include <torch/types.h>

namespace dba::zoo {

/// What a denominator does where it is next to nothing.
enum class Denominator { plain, plus, clamp };

/// Σ_j (f_q[i]·f_k[j]) v[j] / Σ_j f_q[i]·f_k[j], the sums over keys first: f_q (B, H, n, m), f_k (B, H, m_keys, m) with
/// zeros for keys that do not exist, v (B, H, m_keys, w).
at::Tensor kernel_attention(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& v,
                            Denominator denominator = Denominator::plain, double eps = 0.0);

/// Zeros for tokens that do not exist: features (B, H, n, m), valid (B, n) or undefined where all do.
at::Tensor real_features(const at::Tensor& features, const at::Tensor& valid);

/// Rows of a (count, width) matrix in groups of `width`: orthogonal within a group, each as long as a Gaussian vector.
at::Tensor orthogonal_features(int64_t count, int64_t width, int64_t seed);

/// x over its Euclidean length in the last axis; zero where that is zero.
at::Tensor unit_rows(const at::Tensor& x);

/// N(0, 1) from a seed alone, whatever PyTorch's default generator has done.
at::Tensor seeded_normal(at::IntArrayRef sizes, int64_t seed);

}  // namespace dba::zoo
