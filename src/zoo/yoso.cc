#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <numbers>

#include "nn/transient_map.h"
#include "zoo/agreement.h"
#include "zoo/blocks.h"
#include "zoo/buckets.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

constexpr int64_t kMostBits = 16;  // of a hash: codes are int16, and tables have 2^τ rows

/// Rows of `from` (G, m, w) summed by code (G, m, hashes) in a table of `buckets` for every hash, looked up by other
/// codes (G, n, hashes), and summed over the hashes: (G, n, w). Tables are made for some hashes at a time, as many as
/// four times the memory of the rows holds.
Tensor look_up(const Tensor& from, const Tensor& code_from, const Tensor& code_to, int64_t buckets) {
  const auto groups = from.size(0), width = from.size(2), hashes = code_from.size(2);
  const auto rows = from.reshape({-1, width});
  const auto number = [](const Tensor& codes) { return codes.to(at::kLong).bitwise_and(0xffff); };
  const auto at_once = std::clamp<int64_t>(4 * from.size(1) / buckets, 1, hashes);
  Tensor sum;
  for (int64_t begin = 0; begin < hashes; begin += at_once) {
    const auto count = std::min(at_once, hashes - begin);
    const auto options = code_from.options().dtype(at::kLong);
    const auto first = torch::arange(groups * count, options).view({groups, 1, count}) * buckets;
    const auto put = first + number(code_from.narrow(2, begin, count));
    auto table = from.new_zeros({groups * count * buckets, width});
    for (int64_t h = 0; h < count; ++h) {
      table.index_add_(0, put.select(2, h).flatten(), rows);
    }
    const auto get = (first + number(code_to.narrow(2, begin, count))).flatten();
    const auto bags = torch::arange(0, get.numel(), count, options);
    const auto found = std::get<0>(at::_embedding_bag_forward_only(table, get, bags));
    sum = sum.defined() ? sum.add_(found) : found;
  }
  return sum.view({groups, code_to.size(1), width});
}

/// Whether codes of hashes were drawn, or the chance itself counts.
bool sampled(const Tensor& codes) {
  return codes.dim() == 3;
}

Tensor power(Tensor base, int64_t exponent) {
  Tensor product;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) {
      product = product.defined() ? product * base : base;
    }
    base = exponent > 1 ? base.square() : base;
  }
  return product;
}

/// Σ_j B_ij v_j, B_ij the chance that a hash of τ bits sends q_i and k_j to the same bucket, or the share of some
/// hashes whose codes agree; q (G, n, w), k and v (G, m, w), codes (G, n or m, hashes) of int16, empty for the chance.
/// The gradient of B_ij for q_i·k_j is (τ/2) B_ij, the paper's lower bound of the true one, which is infinite where q_i
/// = k_j. The map exists for some queries at a time; `type` is that of its products.
struct Bernoulli : torch::autograd::Function<Bernoulli> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& code_q, const Tensor& code_k, int64_t tau, at::ScalarType type) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    context->save_for_backward({q, k, v, code_q, code_k});
    context->saved_data["tau"] = tau;
    context->saved_data["type"] = static_cast<int64_t>(type);
    const auto buckets = int64_t{1} << tau;
    // A GPU counts pairs faster than it adds to tables.
    if (sampled(code_q) && k.size(1) > (k.is_cpu() ? buckets : code_q.size(2) * v.size(2))) {
      return look_up(v, code_k, code_q, buckets) / code_q.size(2);
    }
    auto sum = torch::empty({q.size(0), q.size(1), v.size(2)}, v.options());
    const Pieces pieces(k);
    for (int64_t group = 0; group < k.size(0); group += pieces.groups) {
      const auto of = [&](const Tensor& x) { return pieces.of_groups(x, group); };
      const Pairs pairs(of(q), of(k), of(code_q), of(code_k), tau, type);
      const auto values = of(v).to(type), out = of(sum);
      for (int64_t begin = 0; begin < q.size(1); begin += pieces.queries) {
        const auto some = [&](const Tensor& x) { return pieces.of_queries(x, begin); };
        some(out).copy_(torch::bmm(pairs.weights(some), values));
      }
    }
    return sampled(code_q) ? sum.div_(code_q.size(2)) : sum;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("yoso");
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &code_q = saved[3], &code_k = saved[4], &dy = gradients[0];
    const auto tau = context->saved_data["tau"].toInt();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    auto [dq, dk, dv] = !sampled(code_q) || pairs_are_faster(q, k, code_q.size(2), int64_t{1} << tau)
                            ? from_pairs(q, k, v, dy, code_q, code_k, tau, type)
                            : from_buckets(q, k, v, dy, code_q, code_k, int64_t{1} << tau, type);
    const auto share = sampled(code_q) ? 1.0 / static_cast<double>(code_q.size(2)) : 1.0;
    const auto half = share * static_cast<double>(tau) / 2;
    return {dq * half, dk * half, dv * share, {}, {}, {}, {}};
  }

 private:
  /// dQ and dK without the factor τ/2, and dV; all times the number of hashes, if there are any.
  using Gradients = std::tuple<Tensor, Tensor, Tensor>;

  /// Groups and queries at a time: their pairs are of a cache's size, or enough to keep a GPU busy.
  struct Pieces {
    explicit Pieces(const Tensor& k) {
      constexpr int64_t kFewestQueries = 64;
      const auto pairs = k.is_cpu() ? (int64_t{1} << 18) * at::get_num_threads() : int64_t{1} << 26;
      groups = std::clamp<int64_t>(pairs / (kFewestQueries * k.size(1)), 1, k.size(0));
      queries = std::max<int64_t>(pairs / (groups * k.size(1)), 1);
    }
    Tensor of_groups(const Tensor& x, int64_t first) const {
      return x.dim() == 3 ? x.narrow(0, first, std::min(groups, x.size(0) - first)) : x;
    }
    Tensor of_queries(const Tensor& x, int64_t first) const {
      return x.narrow(1, first, std::min(queries, x.size(1) - first));
    }
    int64_t groups, queries;
  };

  /// The map, for some queries at a time; times the number of hashes, if there are any.
  struct Pairs {
    Pairs(const Tensor& q_, const Tensor& k_, const Tensor& code_q_, const Tensor& code_k, int64_t tau_,
          at::ScalarType type_)
        : q(q_),
          keys(k_.transpose(1, 2)),
          code_q(code_q_),
          key_codes(sampled(code_k) ? code_k.transpose(1, 2).contiguous() : code_k),
          tau(tau_),
          type(type_) {}

    template <class Some>
    Tensor weights(const Some& some) const {
      if (sampled(code_q)) {
        return agreement(some(code_q), key_codes, type);
      }
      const auto cosine = torch::bmm(some(q), keys);
      return power(cosine.clamp_(-1, 1).acos_().mul_(-1 / std::numbers::pi).add_(1), tau).to(type);
    }

    const Tensor q, keys, code_q, key_codes;
    const int64_t tau;
    const at::ScalarType type;
  };

  static void add_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
    if (sum.scalar_type() == a.scalar_type()) {
      sum.baddbmm_(a, b);
    } else {
      sum.add_(torch::bmm(a, b));
    }
  }

  static Gradients from_pairs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy, const Tensor& code_q,
                              const Tensor& code_k, int64_t tau, at::ScalarType type) {
    auto dq = torch::empty_like(q), dk = torch::zeros_like(k), dv = torch::zeros_like(v);
    const Pieces pieces(k);
    for (int64_t group = 0; group < k.size(0); group += pieces.groups) {
      const auto of = [&](const Tensor& x) { return pieces.of_groups(x, group); };
      const Pairs pairs(of(q), of(k), of(code_q), of(code_k), tau, type);
      const auto asking = of(q).to(type), keys = of(k).to(type), given = of(dy).to(type);
      const auto values = of(v).to(type).transpose(1, 2), out = of(dq);
      for (int64_t begin = 0; begin < q.size(1); begin += pieces.queries) {
        const auto some = [&](const Tensor& x) { return pieces.of_queries(x, begin); };
        const auto weights = pairs.weights(some);
        add_product(of(dv), weights.transpose(1, 2), some(given));
        const auto pull = torch::bmm(some(given), values).mul_(weights);
        some(out).copy_(torch::bmm(pull, keys));
        add_product(of(dk), pull.transpose(1, 2), some(asking));
      }
    }
    return {dq, dk, dv};
  }

  /// Nanoseconds, measured with backward passes of 512 to 8,192 tokens in heads of 8 to 64 columns, 32 hashes and 256
  /// buckets, on one and two threads: tables take over at 2,000 to 5,800 tokens. On an H200, up to 16,384 tokens in
  /// heads of 16 to 64: at 17,000 to 33,000.
  static bool pairs_are_faster(const Tensor& q, const Tensor& k, int64_t hashes, int64_t buckets) {
    const auto n = q.size(1), m = k.size(1), size = rows_of_bucket_block(q.device());
    const auto blocks = Buckets::blocks_of(n, buckets, size) + Buckets::blocks_of(m, buckets, size);
    const auto products = static_cast<double>(std::max(blocks, 2 * buckets) * hashes);
    const auto pairs = static_cast<double>(n) * static_cast<double>(m);
    const auto width = static_cast<double>(q.size(2));
    return q.is_cpu()
               ? pairs * (2 + static_cast<double>(hashes) / 24 + width / 28) <= products * (420 + width * width * 0.65)
               : pairs * (0.011 + width / 25'000) <= products * (20 + width * 1.25);
  }

  static Gradients from_buckets(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy,
                                const Tensor& code_q, const Tensor& code_k, int64_t buckets, at::ScalarType type) {
    const auto at_once = q.is_cpu() ? int64_t{1} << 20 : int64_t{1} << 28;
    auto [dq, dk] = sums_within_buckets(q, k, v, dy, code_q, code_k, buckets, type, at_once);
    return {dq, dk, look_up(dy, code_q, code_k, buckets)};
  }
};

class Yoso : public ZooAttention {
 public:
  Yoso(const DBAttentionOptions& options_, const OptionValues& values_) : ZooAttention("yoso", options_, values_) {
    register_projections();
    if (choice("kind") == "sampled") {
      hold_buffer(directions_, "directions",
                  seeded_normal({integer("hashes") * integer("tau"), head_width()}, seed()).to(at::kFloat));
    }
  }

 private:
  /// (G, n, hashes) of int16: the signs of τ projections as the bits of a number; empty by expectation.
  Tensor codes(const Tensor& x) const {
    if (!directions_.defined()) {
      return torch::empty({0}, x.options().dtype(at::kShort));
    }
    const torch::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    auto bits = torch::matmul(x, directions_.t().to(x.scalar_type())).gt_(0).unflatten(2, {-1, integer("tau")});
    const auto place = torch::arange(integer("tau"), x.options().dtype(at::kLong));
    const auto values = torch::ones_like(place).bitwise_left_shift(place).to(x.scalar_type());
    return torch::matmul(bits, values).to(at::kInt).to(at::kShort);
  }

  Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto projected = w_q->forward(queries.rows);
    // High powers of small chances, and what is divided by them, need the range of float.
    const auto wide = [&](const Blocks& blocks, const Tensor& rows) {
      const auto taken = blocks.take_whole(rows, heads).flatten(0, 1);  // (B·H, n, d_h)
      return taken.scalar_type() == at::kDouble ? taken : taken.to(at::kFloat);
    };
    const auto q = unit_rows(wide(asking, projected));
    const auto k = unit_rows(wide(asked, w_k->forward(memory.rows)));
    const auto v = wide(asked, w_v->forward(memory.rows));
    const bool brief = projected.scalar_type() == at::kBFloat16 && (!directions_.defined() || integer("hashes") <= 256);
    const auto sum =
        Bernoulli::apply(q, k, v, codes(q), codes(k), integer("tau"), brief ? at::kBFloat16 : q.scalar_type());
    const auto mixed = unit_rows(sum).unflatten(0, {-1, heads});
    return w_o->forward(asking.give_whole(mixed).to(w_o->weight.scalar_type()));
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
          "from the seed, and for each a table of 2^τ sums of values, in backward of d_h × d_h matrices, linear in n; "
          "where comparing all pairs of codes is faster, that is done: forward up to 2^τ keys (m·d_h on a GPU), "
          "backward up to some thousand (some ten thousand on a GPU). Memory is linear throughout. Kind "
          "expectation: the chance itself, of all pairs. In both the gradient of a weight is (τ/2) w_ij, the paper's "
          "bounded substitute. A padded token has a zero value, whatever its bucket.",
      .options = {{"kind", "sampled", "hashes or their expectation", 0, {"sampled", "expectation"}},
                  {"tau", "8", "bits τ of a hash", 1, {}, kMostBits},
                  {"hashes", "32", "hashes m of kind sampled", 1, {}, kMostHashes},
                  seed_option()},
      .capabilities = {},
      .build = built<Yoso>};
  member.capabilities.deterministic = false;
  member.capabilities.hashes = true;
  member.capabilities.cross_attention = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·hashes·tau, trained n·hashes·d_h²; n² by expectation";
  return member;
}

}  // namespace dba::zoo
