#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "dba/ops.h"
#include "nn/transient_map.h"
#include "nn/wide_product.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// The score of a token with itself: chosen only where there is nothing else.
constexpr double kSelf = -5e4;
/// The code and the bucket of places without a token; codes are more than 1 away from all others.
constexpr int64_t kNobody = -9;
/// Rounds that a byte counts.
constexpr int64_t kMostInByte = 255;

/// What keys of the chunk and of the one before it have, of (…, chunks, size); for the first chunk that is filled up.
Tensor with_chunk_before(const Tensor& chunks, const Tensor& filling) {
  const auto first = filling.expand_as(chunks.narrow(-2, 0, 1));
  const auto before = torch::cat({first, chunks.narrow(-2, 0, chunks.size(-2) - 1)}, -2);
  return torch::cat({before, chunks}, -1);
}

/// What the rounds of hashing tell of n tokens, n a multiple of the chunk: (rounds, B, H, n) each.
struct Hashes {
  Tensor order;    ///< the tokens by bucket and place
  Tensor rank;     ///< the place of each token in that order
  Tensor buckets;  ///< of the tokens in that order
  Tensor codes;    ///< of each token: a round pairs i and j where code_i − code_j is 0 or 1
};

/// Attention among the tokens of a bucket, q, v (B, H, n, w) with n a multiple of `chunk`; keys are q/|q|. All pairs
/// exist for some sequences and heads at a time, and again for their gradients.
struct Rounds : torch::autograd::Function<Rounds> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& q, const Tensor& v,
                        const Tensor& order, const Tensor& rank, const Tensor& buckets, const Tensor& codes,
                        const std::optional<Tensor>& given_rng, double dropout, int64_t chunk) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto rng = given_rng.value_or(Tensor());
    const Problem problem(q, v, {order, rank, buckets, codes}, rng, dropout, chunk);
    const auto rounds = order.size(0), batch = q.size(0), heads = q.size(1), n = q.size(2);
    auto y = torch::empty({batch, n, heads, v.size(3)}, v.options());
    // What the sums of a round are multiplied with; undefined for one round.
    Tensor factors;
    if (rounds > 1) {
      factors = torch::empty({rounds, batch, n, heads, 1}, q.options().dtype(problem.wide()));
    }
    for (const auto& piece : problem.pieces()) {
      std::vector<Tensor> outputs, logarithms, totals;
      for (int64_t r = 0; r < rounds; ++r) {
        const Pairs pairs(problem, piece, r, /*with_sums=*/rounds > 1);
        outputs.push_back(pairs.back(wide_matmul(pairs.dropped(), pairs.windows(problem.values))));
        if (rounds > 1) {
          const auto total = pairs.map.sum({2}, /*keepdim=*/true, problem.wide());
          logarithms.push_back(pairs.back(pairs.logarithm + total.log()));
          totals.push_back(pairs.back(total));
        }
      }
      auto out = piece.of(y.transpose(1, 2), 2).transpose(1, 2);  // (b, n, h, w)
      if (rounds == 1) {
        out.copy_(outputs[0]);
        continue;
      }
      // Rounds share by their log-sum-exp; a total of all would be too coarse where all is as low as kSelf.
      const auto share = torch::stack(logarithms).softmax(0).div_(torch::stack(totals));
      for (int64_t r = 0; r < rounds; ++r) {
        piece.of(factors[r].transpose(1, 2), 2).transpose(1, 2).copy_(share[r]);
        r == 0 ? at::mul_out(out, outputs[0], share[0]) : out.addcmul_(outputs[static_cast<size_t>(r)], share[r]);
      }
    }
    y = y.transpose(1, 2);
    context->save_for_backward({q, v, order, rank, buckets, codes, rng, y, factors});
    context->saved_data["dropout"] = dropout;
    context->saved_data["chunk"] = chunk;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("reformer");
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &v = saved[1], &y = saved[7], &factors = saved[8];
    const Problem problem(q, v, {saved[2], saved[3], saved[4], saved[5]}, saved[6],
                          context->saved_data["dropout"].toDouble(), context->saved_data["chunk"].toInt());
    const auto dy = gradients[0].to(q.scalar_type()).transpose(1, 2);  // (B, n, H, w)
    const auto pulled = dot_rows(dy, y.transpose(1, 2));
    const auto dq = torch::empty(dy.sizes(), q.options()), dv = torch::empty(dy.sizes(), q.options());
    // dy and dy·y by rounds, times what the sums of the round are.
    std::vector<Tensor> given, offsets;
    for (int64_t r = 0; r < problem.hashes.order.size(0); ++r) {
      auto rows = dy;
      if (factors.defined()) {
        rows = torch::empty(dy.sizes(), dy.options());
        at::mul_out(rows, dy, factors[r]);
      }
      given.push_back(rows.reshape({-1, rows.size(3)}));
      offsets.push_back((factors.defined() ? pulled * factors[r] : pulled).view({-1, 1}));
    }
    for (const auto& piece : problem.pieces()) {
      Tensor from_queries, from_keys, from_values;
      const auto add = [](Tensor& sum, const Tensor& one) { sum = sum.defined() ? sum.add_(one) : one; };
      for (size_t r = 0; r < given.size(); ++r) {
        const Pairs pairs(problem, piece, static_cast<int64_t>(r), /*with_sums=*/false);
        const auto asking = pairs.sorted(given[r]);
        add(from_values, pairs.back_from_windows(wide_matmul(pairs.dropped().transpose(1, 2), asking)));
        auto slope = wide_matmul(asking, pairs.windows(problem.values).transpose(1, 2));
        if (pairs.kept.defined()) {
          slope.mul_(pairs.kept);
        }
        slope.sub_(pairs.sorted(offsets[r])).mul_(pairs.map);
        slope.diagonal(problem.chunk, 1, 2).zero_();
        add(from_queries, pairs.back(wide_matmul(slope, pairs.keys)));
        add(from_keys, pairs.back_from_windows(wide_matmul(slope.transpose(1, 2), pairs.queries)));
      }
      // Keys are u/√w with u = q/|q|, and u' = (1 − u uᵀ)/|q|.
      const auto part = [&](const Tensor& x) { return piece.of(x.transpose(1, 2), 2).transpose(1, 2); };
      const auto keys = part(problem.keys.view(dy.sizes()));
      const auto along = dot_rows(keys, from_keys).mul_(static_cast<double>(q.size(3)));
      auto out = part(dq);
      at::addcmul_out(out, from_queries, from_keys.addcmul_(keys, along, -1), part(problem.over));
      part(dv).copy_(from_values);
    }
    return {dq.transpose(1, 2), dv.transpose(1, 2), {}, {}, {}, {}, {}, {}, {}};
  }

 private:
  struct Problem {
    Problem(const Tensor& q, const Tensor& v, Hashes hashes_, const Tensor& rng_, double dropout_, int64_t chunk_)
        : hashes(std::move(hashes_)),
          rng(rng_),
          dropout(dropout_),
          chunk(chunk_),
          batch(q.size(0)),
          heads(q.size(1)),
          n(q.size(2)) {
      const auto rows = [](const Tensor& x) { return x.transpose(1, 2).reshape({-1, x.size(3)}); };
      queries = rows(q);
      values = rows(v);
      const auto length = at::linalg_vector_norm(queries, 2, {1}, /*keepdim=*/true, wide());
      over = length.masked_fill_(length.eq(0), 1).reciprocal_().mul_(1.0 / std::sqrt(static_cast<double>(q.size(3))));
      keys = torch::empty_like(queries);
      at::mul_out(keys, queries, over);
      over = over.view({batch, n, heads, 1});

      const auto options = hashes.order.options();
      const auto sequence = torch::arange(0, batch * n * heads, n * heads, options).view({batch, 1, 1});
      const auto head = torch::arange(heads, options).view({heads, 1});
      row = torch::add(sequence + head, hashes.order, heads).unflatten(3, {-1, chunk});
      // Whatever stands before the first chunk is in no bucket.
      row_of_window = with_chunk_before(row, row.narrow(3, 0, 1));
      const auto before = torch::arange(0, batch * heads * n, n, options).view({batch, heads, 1});
      place = (hashes.rank + before).transpose(2, 3).contiguous();
      nobody = torch::full({}, kNobody, hashes.buckets.options());
      bucket = hashes.buckets.unflatten(3, {-1, chunk});
      bucket_of_window = with_chunk_before(bucket, nobody);
    }
    at::ScalarType wide() const {
      return ops::accumulation_type(queries.scalar_type());
    }
    std::vector<MapPiece> pieces() const {
      return map_pieces({batch, heads, 1, 1}, n * 2 * chunk, queries.device());
    }

    const Hashes hashes;
    const Tensor rng;
    const double dropout;
    const int64_t chunk, batch, heads, n;
    Tensor queries, keys, values;  ///< (B·n·H, w) tokens as they come; keys over √w
    Tensor over;                   ///< 1/(|q|·√w), (B, n, H, 1)
    // By rounds:
    Tensor row, row_of_window;        ///< of each place in the order, (rounds, B, H, chunks, chunk or 2·chunk)
    Tensor place;                     ///< in the order of all sequences and heads, of each token (rounds, B, n, H)
    Tensor bucket, bucket_of_window;  ///< of each place in the order
    Tensor nobody;                    ///< kNobody
  };

  /// What one round pairs in a piece: (b·h·chunks, chunk, 2·chunk).
  struct Pairs {
    Pairs(const Problem& problem_, const MapPiece& piece_, int64_t round, bool with_sums)
        : problem(problem_), piece(piece_) {
      const auto here = [&](const Tensor& x) { return piece.of(x[round], 2); };
      row = here(problem.row).flatten();
      row_of_window = here(problem.row_of_window).flatten();
      const auto first = (piece.first[0] * problem.heads + piece.first[1]) * problem.n;
      place = piece.of(problem.place[round].transpose(1, 2), 2).transpose(1, 2).flatten();
      place = first > 0 ? place - first : place;

      const auto hidden = here(problem.bucket).unsqueeze(4).ne(here(problem.bucket_of_window).unsqueeze(3));
      queries = sorted(problem.queries);
      keys = windows(problem.keys);
      auto scores = wide_matmul(queries, keys.transpose(1, 2));
      scores.masked_fill_(hidden.flatten(0, 2), low_score(scores.scalar_type()));
      scores.diagonal(problem.chunk, 1, 2).fill_(kSelf);
      map = scores.softmax(2);
      if (with_sums) {
        // The highest weight is one over the sum: an exp over scores as low as these is many times slower than a
        // softmax.
        const auto highest = map.amax({2}, /*keepdim=*/true).to(problem.wide());
        logarithm = scores.amax({2}, /*keepdim=*/true).to(problem.wide()) - highest.log_();
      }
      share_out(round);
      if (problem.dropout > 0) {
        // Rounds, one behind the other, are sequences of the generator's.
        const MapPiece drawn{{round * problem.batch + piece.first[0], piece.first[1], 0, 0},
                             {piece.count[0], piece.count[1], 1, problem.n}};
        kept = drawn
                   .dropout_mask({problem.hashes.order.size(0) * problem.batch, problem.heads, 1, problem.n},
                                 2 * problem.chunk, problem.dropout, problem.rng, problem.wide())
                   .view(map.sizes());
      }
    }

    /// The union of the rounds counts each pair once: a round's share of it is one over those that have it.
    void share_out(int64_t round) {
      const auto& hashes = problem.hashes;
      const auto rounds = hashes.order.size(0);
      Tensor count;
      for (int64_t r = 0; r < rounds; ++r) {
        if (r == round) {
          continue;
        }
        const auto code = piece.of(hashes.codes[r], 2).gather(2, piece.of(hashes.order[round], 2));
        const auto asking = code.unflatten(2, {-1, problem.chunk}), asked = with_chunk_before(asking, problem.nobody);
        const auto paired = asking.unsqueeze(4)
                                .eq(asked.unsqueeze(3))
                                .logical_or_(asking.unsqueeze(4).eq((asked + 1).unsqueeze(3)))
                                .flatten(0, 2);
        if (count.defined()) {
          count.add_(paired);
        } else {
          count = (rounds > kMostInByte ? paired.to(at::kInt) : paired.view(at::kByte)).add_(1);
        }
      }
      if (count.defined()) {
        map.div_(count);
      }
    }

    /// Of the tokens of all, (B·n·H, w), those of the piece in the round's order, (b·h·chunks, chunk, w).
    Tensor sorted(const Tensor& all) const {
      return all.index_select(0, row).view({-1, problem.chunk, all.size(1)});
    }
    /// The same with the chunk before, (b·h·chunks, 2·chunk, w).
    Tensor windows(const Tensor& all) const {
      return all.index_select(0, row_of_window).view({-1, 2 * problem.chunk, all.size(1)});
    }
    /// Chunks as tokens in their places, (b, n, h, w).
    Tensor back(const Tensor& chunks) const {
      return taken(chunks, place);
    }
    /// What keys of windows got, (b·h·chunks, 2·chunk, w), as what tokens got, of their own chunk and of the next.
    Tensor back_from_windows(const Tensor& pairs) const {
      const auto chunk = problem.chunk, next = problem.n / chunk - 1;
      const auto by_head = pairs.unflatten(0, {-1, next + 1});
      by_head.narrow(2, chunk, chunk).narrow(1, 0, next).add_(by_head.narrow(2, 0, chunk).narrow(1, 1, next));
      return taken(pairs, (place.div(chunk, "floor") + 1).mul_(chunk).add_(place));
    }
    Tensor taken(const Tensor& x, const Tensor& index) const {
      const auto width = x.size(2);
      return x.view({-1, width}).index_select(0, index).view({piece.count[0], problem.n, piece.count[1], width});
    }
    /// The map after dropout.
    Tensor dropped() const {
      if (!kept.defined()) {
        return map;
      }
      auto left = torch::empty_like(map);
      return at::mul_out(left, map, kept);
    }

    const Problem& problem;
    const MapPiece& piece;
    Tensor row, row_of_window;  ///< of each place of chunks and of windows, among all tokens
    Tensor place;               ///< in the chunks, of each token (b, n, h)
    Tensor queries, keys;       ///< of chunks and of windows, (b·h·chunks, chunk or 2·chunk, w)
    Tensor map;                 ///< the softmax, each weight over the number of rounds that pair the two
    Tensor logarithm;           ///< of the sums that the softmax divides by, (…, 1), where asked for
    Tensor kept;                ///< the dropout's mask over the keep rate; undefined without any
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
    hold_buffer(rotations_, "rotations",
                seeded_normal({integer("rounds"), options.heads(), head_width(), buckets / 2}, seed()).to(at::kFloat));
  }

 private:
  /// Of q (B, H, n, d_h); codes are buckets that are 2 or more apart, plus the chunk of the order that the token falls
  /// into. exists (B, 1, n) may be undefined: all do.
  Hashes hash(const Tensor& q, const Tensor& exists, int64_t chunk) const {
    const torch::NoGradGuard no_grad;
    const auto batch = q.size(0), heads = q.size(1), n = q.size(2), rounds = rotations_.size(0);
    const auto chunks = n / chunk, buckets = integer("buckets");
    // Tokens of all sequences times the rotations of all rounds, by heads: no copy of tokens that lie in a batch.
    const auto tokens = q.transpose(1, 2).reshape({batch * n, heads, -1}).transpose(0, 1);
    const auto rotated = torch::bmm(tokens, rotations_.permute({1, 2, 0, 3}).flatten(2).to(tokens.scalar_type()))
                             .view({heads, batch, n, rounds, buckets / 2})
                             .permute({3, 1, 0, 2, 4});  // (rounds, B, H, n, buckets/2)
    const auto [highest, first] = rotated.max(4);
    const auto [lowest, last] = rotated.min(4);
    const bool brief = (buckets + 1) * std::max(n, chunks + 1) <= std::numeric_limits<int32_t>::max();
    const auto options = first.options().dtype(brief ? at::kInt : at::kLong);
    auto bucket = torch::where(highest.ge(-lowest), first, last + buckets / 2).to(options.dtype());
    if (exists.defined()) {
      bucket.masked_fill_(exists.logical_not(), buckets);
    }
    const auto number = torch::arange(n, options);
    const auto [sorted, order] = (bucket * n + number).contiguous().sort(3);
    Hashes hashes{order, {}, sorted.div(n, "floor"), {}};
    const auto places = torch::arange(n, order.options()).expand_as(order);
    hashes.rank = torch::empty_like(order).scatter_(3, order, places);
    hashes.codes = (bucket * (chunks + 1)).add_(hashes.rank.div(chunk, "floor"));
    if (exists.defined()) {
      hashes.codes.masked_fill_(exists.logical_not(), kNobody);
    }
    return hashes;
  }

  Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("chunk"));
    const auto heads = options.heads();
    const auto q = blocks.take(w_qk_->forward(stream.rows), heads).flatten(2, 3);
    const auto v = blocks.take(w_v->forward(stream.rows), heads).flatten(2, 3);
    const auto real = blocks.real();
    const auto hashes = hash(q, real.defined() ? real.flatten(1).unsqueeze(1) : real, blocks.size);
    const auto drawn = ops::Dropout::draw(drop_rate(), q.device());
    const auto mixed =
        Rounds::apply(q, v, hashes.order, hashes.rank, hashes.buckets, hashes.codes,
                      drawn.rng.defined() ? std::optional(drawn.rng) : std::nullopt, drawn.p, blocks.size);
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
          "themselves, wraps the first chunk around to the last and has no map after the heads.",
      .options = {{"chunk", "64", "tokens of a chunk", 1, {}},
                  {"buckets", "64", "buckets of a round, even", 2, {}},
                  {"rounds", "2", "rounds of hashing", 1, {}},
                  seed_option()},
      .capabilities = {},
      .build = built<Reformer>};
  member.capabilities.deterministic = false;
  member.capabilities.hashes = true;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linearithmic;
  member.capabilities.complexity = "rounds·n·(log n + buckets + rounds·chunk)";
  return member;
}

}  // namespace dba::zoo
