#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "dba/ops.h"
#include "nn/transient_map.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// The score of a token with itself: chosen only where there is nothing else.
constexpr double kSelf = -5e4;
/// The code of places without a token, and more than 1 away from all others.
constexpr int64_t kNobody = -9;

/// Keys of the chunk and of the one before it; for the first chunk that is filled up. (b, h, chunks, size, …).
Tensor with_chunk_before(const Tensor& chunks, double filling) {
  const auto before =
      torch::cat({torch::full_like(chunks.narrow(2, 0, 1), filling), chunks.narrow(2, 0, chunks.size(2) - 1)}, 2);
  return torch::cat({before, chunks}, 3);
}

/// The reverse for gradients: what a chunk got as itself and as the one before the next, (b, h, chunks, size, w).
Tensor from_chunk_and_next(const Tensor& pairs) {
  const auto size = pairs.size(3) / 2, count = pairs.size(2);
  auto own = pairs.narrow(3, size, size);
  own.narrow(2, 0, count - 1).add_(pairs.narrow(3, 0, size).narrow(2, 1, count - 1));
  return own;
}

/// Attention among the tokens of a bucket, q, k, v (B, H, n, w) with n a multiple of `chunk`. Round r has its tokens in
/// the order order[r] (B, H, n) and gives each a code, codes[r] (B, H, n): it pairs i and j where code_i − code_j is 0
/// or 1. All pairs exist for some sequences and heads at a time, and again for their gradients.
struct Rounds : torch::autograd::Function<Rounds> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& order, const Tensor& codes, const std::optional<Tensor>& given_rng,
                        double dropout, int64_t chunk) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto rng = given_rng.value_or(Tensor());
    const Problem problem{q, k, v, order, codes, rng, dropout, chunk};
    auto y = torch::empty_like(v);
    // The log-sum-exp of every round; a total would be too coarse where all is as low as kSelf.
    auto weights = torch::empty({order.size(0), q.size(0), q.size(1), q.size(2), 1}, q.options().dtype(problem.wide()));
    for (const auto& piece : problem.pieces()) {
      std::vector<Tensor> outputs;
      for (int64_t r = 0; r < order.size(0); ++r) {
        const Pairs pairs(problem, piece, r);
        const auto map = pairs.scores.softmax(4);
        const auto mixed = torch::matmul(pairs.dropped(map), with_chunk_before(pairs.sorted(v), 0));
        outputs.push_back(pairs.back(mixed).to(problem.wide()));
        // The highest weight is one over the sum: an exp over scores as low as these is many times slower than a
        // softmax.
        const auto weight = pairs.scores.amax({4}, /*keepdim=*/true) - map.amax({4}, /*keepdim=*/true).log_();
        piece.of(weights[r], 2).copy_(pairs.back(weight));
      }
      piece.of(y, 2).copy_((torch::stack(outputs) * shares(weights, piece)).sum(0));
    }
    context->save_for_backward({q, k, v, order, codes, rng, y, weights});
    context->saved_data["dropout"] = dropout;
    context->saved_data["chunk"] = chunk;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("reformer");
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &y = saved[6], &weights = saved[7];
    const Problem problem{q,
                          k,
                          v,
                          saved[3],
                          saved[4],
                          saved[5],
                          context->saved_data["dropout"].toDouble(),
                          context->saved_data["chunk"].toInt()};
    const auto type = q.scalar_type();
    const auto dy = gradients[0].to(type);
    auto dq = torch::zeros_like(q), dk = torch::zeros_like(k), dv = torch::zeros_like(v);
    for (const auto& piece : problem.pieces()) {
      const auto share = shares(weights, piece);
      const auto pulled = (piece.of(dy, 2).to(problem.wide()) * piece.of(y, 2)).sum(3, /*keepdim=*/true);
      for (int64_t r = 0; r < problem.order.size(0); ++r) {
        const Pairs pairs(problem, piece, r);
        const auto map = pairs.scores.softmax(4).mul_(pairs.in_order(share[r]));
        const auto given = pairs.sorted(dy);
        piece.of(dv, 2).add_(pairs.back(from_chunk_and_next(torch::matmul(pairs.dropped(map).transpose(3, 4), given))));
        auto slope = torch::matmul(given, with_chunk_before(pairs.sorted(v), 0).transpose(3, 4)).to(problem.wide());
        if (pairs.kept.defined()) {
          slope.mul_(pairs.kept);
        }
        slope.sub_(pairs.in_order(pulled)).mul_(map).masked_fill_(pairs.self, 0).mul_(problem.scale());
        const auto scores = slope.to(type);
        piece.of(dq, 2).add_(pairs.back(torch::matmul(scores, with_chunk_before(pairs.sorted(k), 0))));
        piece.of(dk, 2).add_(pairs.back(from_chunk_and_next(torch::matmul(scores.transpose(3, 4), pairs.sorted(q)))));
      }
    }
    return {dq, dk, dv, {}, {}, {}, {}, {}};
  }

 private:
  /// Of each round in the whole, (rounds, b, h, n, 1).
  static Tensor shares(const Tensor& weights, const MapPiece& piece) {
    std::vector<Tensor> all;
    for (const auto& round : weights.unbind(0)) {
      all.push_back(piece.of(round, 2));
    }
    return torch::stack(all).softmax(0);
  }

  struct Problem {
    Tensor q, k, v, order, codes, rng;
    double dropout;
    int64_t chunk;

    at::ScalarType wide() const {
      return ops::accumulation_type(q.scalar_type());
    }
    double scale() const {
      return 1.0 / std::sqrt(static_cast<double>(q.size(3)));
    }
    std::vector<MapPiece> pieces() const {
      return map_pieces({q.size(0), q.size(1), 1, 1}, q.size(2) * 2 * chunk, q.device());
    }
  };

  /// What one round pairs in a piece: (b, h, chunks, chunk, 2·chunk).
  struct Pairs {
    Pairs(const Problem& problem, const MapPiece& piece_, int64_t round)
        : piece(piece_), chunk(problem.chunk), type(problem.q.scalar_type()), order(piece.of(problem.order[round], 2)) {
      // The union of the rounds counts each pair once: a round's share of it is one over those that have it.
      Tensor count, now;
      for (int64_t r = 0; r < problem.order.size(0); ++r) {
        const auto code = sorted(problem.codes[r]);
        const auto keys = with_chunk_before(code, kNobody).unsqueeze(3), queries = code.unsqueeze(4);
        const auto paired = queries.eq(keys).logical_or_(queries.eq(keys + 1));
        now = r == round ? paired : now;
        count = count.defined() ? count.add_(paired) : paired.to(problem.wide());
      }
      const auto place = order.unflatten(2, {-1, chunk});
      self = place.unsqueeze(4).eq(with_chunk_before(place, -1).unsqueeze(3));
      scores = torch::matmul(sorted(problem.q), with_chunk_before(sorted(problem.k), 0).transpose(3, 4));
      scores = scores.to(problem.wide()).mul_(problem.scale()).masked_fill_(self, kSelf);
      scores.sub_(count.clamp_min_(1).log_()).masked_fill_(now.logical_not_(), low_score(problem.wide()));
      if (problem.dropout > 0) {
        // Rounds, one behind the other, are sequences of the generator's.
        const auto batch = problem.q.size(0), heads = problem.q.size(1), n = order.size(2);
        const MapPiece rows{{round * batch + piece.first[0], piece.first[1], 0, 0},
                            {piece.count[0], piece.count[1], 1, n}};
        kept = rows.dropout_mask({problem.order.size(0) * batch, heads, 1, n}, 2 * chunk, problem.dropout, problem.rng,
                                 problem.wide())
                   .view(scores.sizes());
      }
    }

    /// Tokens of the piece, of all (B, H, n, …), in the round's order.
    Tensor sorted(const Tensor& all) const {
      return in_order(piece.of(all, 2));
    }
    Tensor in_order(const Tensor& tokens) const {
      const auto index = tokens.dim() == 4 ? order.unsqueeze(3).expand_as(tokens) : order;
      return tokens.gather(2, index).unflatten(2, {-1, chunk});
    }
    /// Chunks as tokens of the piece in their places.
    Tensor back(const Tensor& chunks) const {
      const auto tokens = chunks.flatten(2, 3);
      return torch::empty_like(tokens).scatter_(2, order.unsqueeze(3).expand_as(tokens), tokens);
    }
    /// The map after dropout, in the type of the tokens.
    Tensor dropped(const Tensor& map) const {
      return (kept.defined() ? map * kept : map).to(type);
    }

    const MapPiece& piece;
    const int64_t chunk;
    const at::ScalarType type;
    const Tensor order;  ///< (b, h, n)
    Tensor scores;       ///< what is not seen, and a token with itself, low
    Tensor self;         ///< whether a token meets itself
    Tensor kept;         ///< the dropout's mask over the keep rate; undefined without any
  };
};

class Reformer : public ZooAttention {
 public:
  Reformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("reformer", options_, values_) {
    const auto d = options.d(), buckets = integer("buckets");
    TORCH_CHECK(buckets % 2 == 0, "dba::zoo: option buckets of reformer must be even, got ", buckets);
    w_qk_ = project("w_qk", d, d);
    w_v = project("w_v", d, d);
    w_o = project("w_o", d, d);
    hold_buffer(
        rotations_, "rotations",
        seeded_normal({integer("rounds"), options.heads(), head_width(), buckets / 2}, integer("seed")).to(at::kFloat));
  }

 private:
  /// The order of the tokens by bucket and place in one round, and their codes: buckets that are 2 or more apart, plus
  /// the chunk of the order that the token falls into. (B, H, n) each.
  std::pair<Tensor, Tensor> hash(const Tensor& q, const Tensor& exists, int64_t round, int64_t chunks) const {
    const torch::NoGradGuard no_grad;
    const auto rotated = torch::matmul(q, rotations_[round]);
    const auto [highest, first] = rotated.max(3);
    const auto [lowest, last] = rotated.min(3);
    const auto nobody = exists.logical_not();
    const auto bucket =
        torch::where(highest.ge(-lowest), first, last + rotated.size(3)).masked_fill_(nobody, integer("buckets"));
    const auto n = q.size(2);
    const auto place = torch::arange(n, bucket.options());
    const auto order = (bucket * n + place).argsort(/*dim=*/2, /*descending=*/false);
    const auto chunk_in_order = place.div(integer("chunk"), "floor").expand_as(order);
    const auto chunk = torch::empty_like(order).scatter_(2, order, chunk_in_order);
    const bool brief = integer("buckets") * (chunks + 1) <= std::numeric_limits<int32_t>::max();
    const auto code = (bucket * (chunks + 1) + chunk).masked_fill_(nobody, kNobody);
    return {order, brief ? code.to(at::kInt) : code};
  }

  Tensor mix(const Stream& stream, const Stream&) override {
    const Blocks blocks(stream.sequences, integer("chunk"));
    const auto heads = options.heads();
    const auto q = blocks.take(w_qk_->forward(stream.rows), heads).flatten(2, 3);
    const auto v = blocks.take(w_v->forward(stream.rows), heads).flatten(2, 3);
    const auto exists = blocks.valid().flatten(1).unsqueeze(1).expand({-1, heads, -1});
    std::vector<Tensor> orders, codes;
    for (int64_t r = 0; r < integer("rounds"); ++r) {
      const auto [order, code] = hash(q, exists, r, blocks.count);
      orders.push_back(order);
      codes.push_back(code);
    }
    const auto drawn = ops::Dropout::draw(drop_rate(), q.device());
    const auto mixed =
        Rounds::apply(q, unit_rows(q).to(q.scalar_type()), v, torch::stack(orders), torch::stack(codes),
                      drawn.rng.defined() ? std::optional(drawn.rng) : std::nullopt, drawn.p, integer("chunk"));
    return w_o->forward(blocks.give(mixed.unflatten(2, {blocks.count, blocks.size})));
  }

  torch::nn::Linear w_qk_{nullptr};
  Tensor rotations_;  // (rounds, H, d_h, buckets/2)
};

}  // namespace

Member reformer_member() {
  Member member{
      .name = "reformer",
      .title = "Reformer",
      .paper = "Kitaev et al., Reformer: The Efficient Transformer, ICLR 2020, arXiv 2001.04451",
      .about =
          "Queries are keys: k_j = q_j/|q_j|. Each round hashes a token to argmax of [q R, −q R] with random R, sorts "
          "by bucket and place, cuts the order into chunks and lets a token see those of its bucket in its own "
          "chunk and the one before: y_i = Σ_j softmax over j(q_i·k_j/√d_h) v_j over the union of what the rounds "
          "let it see, each pair once, itself only where there is nothing else. Rounds join by their log-sum-exp "
          "less the log of the number of rounds that pair i and j. The number of buckets is fixed, so the cost is "
          "linear. Long-Range Arena's code multiplies the scores by √d_h, does not normalise keys, lets tokens see "
          "themselves and wraps the first chunk around to the last.",
      .options = {{"chunk", "64", "tokens of a chunk", 1, {}},
                  {"buckets", "64", "buckets of a round, even", 2, {}},
                  {"rounds", "2", "rounds of hashing", 1, {}},
                  seed_option()},
      .capabilities = {},
      .build = built<Reformer>};
  member.capabilities.deterministic = false;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linearithmic;
  member.capabilities.complexity = "rounds·n·(log n + buckets + rounds·chunk)";
  return member;
}

}  // namespace dba::zoo
