#include <torch/torch.h>

#include <numbers>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// Rows of `from` (B, H, m, w) summed by code (B, H, m) in a table of `buckets`, and looked up by other codes (B, H,
/// n).
Tensor look_up(const Tensor& from, const Tensor& code_from, const Tensor& code_to, int64_t buckets) {
  const auto batch = from.size(0), heads = from.size(1), width = from.size(3);
  const auto first = torch::arange(batch * heads, code_from.options()).view({batch, heads, 1}) * buckets;
  auto table = from.new_zeros({batch * heads * buckets, width});
  table.index_add_(0, (first + code_from).flatten(), from.reshape({-1, width}));
  return table.index_select(0, (first + code_to).flatten()).view({batch, heads, code_to.size(2), width});
}

/// Σ_j B_ij v_j with B_ij the share of the hashes whose codes agree; codes (B, H, n, hashes). The gradient of B_ij for
/// q_i·k_j is (τ/2) B_ij, the paper's lower bound of the true one, which is infinite where q_i = k_j.
struct SampledBernoulli : torch::autograd::Function<SampledBernoulli> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& code_q, const Tensor& code_k, int64_t tau) {
    context->save_for_backward({q, k, v, code_q, code_k});
    context->saved_data["tau"] = tau;
    const auto hashes = code_q.size(3);
    auto sum = v.new_zeros({q.size(0), q.size(1), q.size(2), v.size(3)});
    for (int64_t h = 0; h < hashes; ++h) {
      sum += look_up(v, code_k.select(3, h), code_q.select(3, h), int64_t{1} << tau);
    }
    return sum / hashes;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &code_q = saved[3], &code_k = saved[4];
    const auto tau = context->saved_data["tau"].toInt();
    const auto buckets = int64_t{1} << tau;
    const auto hashes = code_q.size(3);
    const auto dy = gradients[0] / hashes;
    const auto half = static_cast<double>(tau) / 2;
    if (k.size(2) <= hashes * v.size(3)) {
      auto [dq, dk, dv] = by_pairs(q, k, v, dy, code_q, code_k);
      return {dq * half, dk * half, dv, {}, {}, {}};
    }
    auto dq = torch::zeros_like(q), dk = torch::zeros_like(k), dv = torch::zeros_like(v);
    for (int64_t h = 0; h < hashes; ++h) {
      const auto from_q = code_q.select(3, h), from_k = code_k.select(3, h);
      dv += look_up(dy, from_q, from_k, buckets);
      // (dy_i·v_j) is a sum over the value's entries: each is a table of its own, a few at a time.
      for (int64_t entry = 0; entry < v.size(3); entry += kEntries) {
        const auto part = std::min(kEntries, v.size(3) - entry);
        const auto some_v = v.narrow(3, entry, part), some_dy = dy.narrow(3, entry, part);
        dq += contracted(some_dy, look_up(outer(some_v, k), from_k, from_q, buckets));
        dk += contracted(some_v, look_up(outer(some_dy, q), from_q, from_k, buckets));
      }
    }
    return {dq * half, dk * half, dv, {}, {}, {}};
  }

 private:
  /// dQ and dK without the factor τ/2, and dV, from the weights B of some queries at a time: n keys cost a query
  /// n·(hashes + w) operations, where tables of w × w cost hashes·w².
  static std::tuple<Tensor, Tensor, Tensor> by_pairs(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const Tensor& dy, const Tensor& code_q, const Tensor& code_k) {
    auto dk = torch::zeros_like(k), dv = torch::zeros_like(v);
    const auto key_codes = code_k.to(at::kInt).unsqueeze(2);  // (B, H, 1, n, hashes)
    const auto pairs = int64_t{1} << (k.is_cpu() ? 18 : 24);  // of a cache's size, or enough to keep a GPU busy
    const auto at_once = std::max<int64_t>(pairs / std::max<int64_t>(k.size(0) * k.size(1) * k.size(2), 1), 1);
    std::vector<Tensor> parts;
    for (int64_t begin = 0; begin < q.size(2); begin += at_once) {
      const auto some = [&](const Tensor& x) { return x.narrow(2, begin, std::min(at_once, x.size(2) - begin)); };
      const auto codes = some(code_q).to(at::kInt).unsqueeze(3);
      auto agreeing = torch::zeros({q.size(0), q.size(1), codes.size(2), k.size(2)}, q.options());
      for (int64_t h = 0; h < code_q.size(3); ++h) {
        agreeing += codes.select(4, h).eq(key_codes.select(4, h));
      }
      dv += torch::matmul(agreeing.transpose(2, 3), some(dy));
      const auto pull = agreeing * torch::matmul(some(dy), v.transpose(2, 3));
      parts.push_back(torch::matmul(pull, k));
      dk += torch::matmul(pull.transpose(2, 3), some(q));
    }
    return {torch::cat(parts, 2), dk, dv};
  }

  static constexpr int64_t kEntries = 8;
  static Tensor outer(const Tensor& a, const Tensor& b) {
    return (a.unsqueeze(4) * b.unsqueeze(3)).flatten(3);
  }
  static Tensor contracted(const Tensor& a, const Tensor& b) {
    return (a.unsqueeze(4) * b.unflatten(3, {a.size(3), b.size(3) / a.size(3)})).sum(3);
  }
};

class Yoso : public ZooAttention {
 public:
  Yoso(const DBAttentionOptions& options_, const OptionValues& values_) : ZooAttention("yoso", options_, values_) {
    register_projections();
    TORCH_CHECK(integer("tau") <= 16, "dba::zoo: option tau of yoso must be at most 16, got ", integer("tau"),
                ", for tables have 2^tau rows");
    if (choice("kind") == "sampled") {
      hold_buffer(directions_, "directions",
                  seeded_normal({integer("hashes") * integer("tau"), head_width()}, integer("seed")).to(at::kFloat));
    }
  }

 private:
  /// (B, H, n, hashes): the signs of τ projections as the bits of a number.
  Tensor codes(const Tensor& x) const {
    const torch::NoGradGuard no_grad;
    const auto bits =
        torch::matmul(x, directions_.t().to(x.scalar_type())).gt(0).unflatten(3, {integer("hashes"), integer("tau")});
    const auto place = torch::arange(integer("tau"), at::TensorOptions().dtype(at::kLong).device(x.device()));
    return bits.to(at::kLong).bitwise_left_shift(place).sum(4);
  }

  Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads(), tau = integer("tau");
    // High powers of small chances, and what is divided by them, need the range of float.
    const auto wide = [](const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); };
    const auto q = unit_rows(wide(asking.take_whole(w_q->forward(queries.rows), heads)));
    const auto k = unit_rows(wide(asked.take_whole(w_k->forward(memory.rows), heads)));
    const auto v = wide(asked.take_whole(w_v->forward(memory.rows), heads));
    Tensor sum;
    if (directions_.defined()) {
      sum = SampledBernoulli::apply(q, k, v, codes(q), codes(k), tau);
    } else {
      const auto cosine = torch::matmul(q, k.transpose(2, 3));
      const auto fixed = cosine.detach();
      const auto expected = (1 - fixed.clamp(-1, 1).acos() / std::numbers::pi).pow(tau);
      sum = torch::matmul(expected * (1 + (cosine - fixed) * (static_cast<double>(tau) / 2)), v);
    }
    return w_o->forward(asking.give_whole(unit_rows(sum)).to(w_o->weight.scalar_type()));
  }

  Tensor directions_;  // (hashes·τ, d_h), shared by the heads
};

}  // namespace

Member yoso_member() {
  Member member{
      .name = "yoso",
      .title = "YOSO",
      .paper = "Zeng et al., You Only Sample (Almost) Once, ICML 2021, arXiv 2111.09714",
      .about =
          "Weights are the chance that a random hash of τ bits sends the unit vectors q_i and k_j to the same bucket, "
          "(1 − arccos(q_i·k_j)/π)^τ; y_i = Σ_j w_ij v_j over its Euclidean norm. Kind sampled: m hashes, drawn once "
          "from the seed, and a table of 2^τ sums of values for each, linear in n. Kind expectation: the chance "
          "itself, on the whole map. In both the gradient of a weight is (τ/2) w_ij, the paper's bounded "
          "substitute. A padded token has a zero value, whatever its bucket.",
      .options = {{"kind", "sampled", "hashes or their expectation", 0, {"sampled", "expectation"}},
                  {"tau", "8", "bits τ of a hash, 16 at most", 1, {}},
                  {"hashes", "32", "hashes m of kind sampled", 1, {}},
                  seed_option()},
      .capabilities = {},
      .build = built<Yoso>};
  member.capabilities.deterministic = false;
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·hashes·tau; n² by expectation";
  return member;
}

}  // namespace dba::zoo
