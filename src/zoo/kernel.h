#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/modules/linear.h>

#include <optional>

namespace dba::zoo {

/// The type that sums over keys are taken in, from projections of a type: float32 for float16, whose range ends at
/// 65504, where sums arrive at ordinary lengths; else the type itself. Autocast would narrow them again: for float16 it
/// is off until `narrow`.
class Summing {
 public:
  explicit Summing(at::ScalarType type);
  Summing(const Summing&) = delete;
  Summing& operator=(const Summing&) = delete;
  ~Summing() = default;

  at::Tensor wide(const at::Tensor& x) const {
    return given_ == at::kHalf ? x.to(at::kFloat) : x;
  }
  /// The end of the sums: x in the type of the projections, and autocast as before.
  at::Tensor narrow(const at::Tensor& x) {
    as_given_.reset();
    return given_ == at::kHalf ? x.to(at::kHalf) : x;
  }

 private:
  at::ScalarType given_;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> as_given_;
};

/// Σ_j (φ_i·ψ_j) v[j] / Σ_j φ_i·ψ_j with φ = f_q + eps and ψ = f_k + eps, the sums over keys first: f_q (B, H, n, m),
/// f_k (B, H, m_keys, m) and v (B, H, m_keys, w) with zeros for keys that do not exist, which have no ψ; valid
/// (B, m_keys) tells them, and is undefined where all exist. Neither φ nor ψ is written out.
at::Tensor kernel_attention(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& v, const at::Tensor& valid,
                            double eps);

/// (B, n, H·w) as (B, H, n, w).
inline at::Tensor by_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(2, {heads, x.size(2) / heads}).transpose(1, 2);
}

/// (B, n, H·w) as matrices of every head, (B·H, n, w), in memory, and back: a copy, and one node of a graph.
at::Tensor heads_apart(const at::Tensor& x, int64_t heads);
at::Tensor heads_joined(const at::Tensor& x, int64_t heads);

/// x_i · y_h for every token and head: x (B, n, H·w), and y (B, 1 or H, H·w), whose row h counts for the w entries of
/// head h → (B, n, H); of several such y, (B, k, 1 or H, H·w) → (B, n, k, H). Heads are never taken apart in memory.
at::Tensor dot_by_heads(const at::Tensor& x, const at::Tensor& y, int64_t heads);

/// x_i times a number for every token and head: x (B, n, H·w), weight (B, n, H).
at::Tensor scale_by_heads(const at::Tensor& x, const at::Tensor& weight);

/// Whether values by heads cost less than products of d × d matrices: for so few queries (B, n, d) in a sequence, and
/// on a GPU for so few in all that it is launches that cost.
bool are_few(at::IntArrayRef queries, at::Device device);

/// concat_h(f_q,h (f_k,hᵀ V_h)) W_o + b_o with V = X W_v + b_v, which long sequences do without: (f_kᵀ X) W_v W_o is d
/// × d, and neither values nor the heads' sums are laid out for every token. f_q (B, n, H·w), f_k (B, m, H·w) with
/// zeros for keys that do not exist, x (B, m, d) → (B, n, d). Weights and x may be float16 where f_q and f_k are
/// float32.
at::Tensor attend_by_sums(const at::Tensor& f_q, const at::Tensor& f_k, const at::Tensor& x, int64_t heads,
                          torch::nn::Linear& w_v, torch::nn::Linear& w_o);

/// Rows of a (count, width) matrix in groups of `width`: orthogonal within a group, each as long as a Gaussian vector.
at::Tensor orthogonal_features(int64_t count, int64_t width, int64_t seed);

/// a·b of the rows in the last axis, (…, 1), in the type that sums are taken in. float16 would lose small products.
at::Tensor dot_rows(const at::Tensor& a, const at::Tensor& b);

/// x over its Euclidean length in the last axis; zero where that is zero.
at::Tensor unit_rows(const at::Tensor& x);

/// N(0, 1) from a seed alone, whatever PyTorch's default generator has done.
at::Tensor seeded_normal(at::IntArrayRef sizes, int64_t seed);

}  // namespace dba::zoo
