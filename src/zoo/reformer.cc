#include <torch/torch.h>

#include <cmath>

#include "zoo/blocks.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// The score of a token with itself: chosen only where there is nothing else. Finite in half precision.
constexpr double kSelf = -5e4;

/// Where each token stands in one round of hashing, by place in the padded sequence: (B, H, n).
struct Round {
  Tensor bucket;
  Tensor order;  ///< places in the order of buckets
  Tensor chunk;  ///< the chunk of that order that the place falls into
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
  Round hash(const Tensor& q, const Tensor& exists, int64_t round) const {
    const torch::NoGradGuard no_grad;
    const auto rotated = torch::matmul(q, rotations_[round]);
    Round found;
    found.bucket = torch::cat({rotated, -rotated}, 3).argmax(3).masked_fill(exists.logical_not(), integer("buckets"));
    const auto n = q.size(2);
    const auto place = torch::arange(n, found.bucket.options());
    found.order = (found.bucket * n + place).argsort(/*dim=*/2, /*descending=*/false);
    const auto rank = torch::empty_like(found.order).scatter_(2, found.order, place.expand_as(found.order));
    found.chunk = rank.div(integer("chunk"), "floor");
    return found;
  }

  /// Keys of the chunk and of the one before it; for the first chunk there is none. (B, H, chunks, size, …).
  static Tensor with_chunk_before(const Tensor& chunks) {
    const auto before =
        torch::cat({torch::zeros_like(chunks.narrow(2, 0, 1)), chunks.narrow(2, 0, chunks.size(2) - 1)}, 2);
    return torch::cat({before, chunks}, 3);
  }

  Tensor mix(const Stream& stream, const Stream&) override {
    const Blocks blocks(stream.sequences, integer("chunk"));
    const auto heads = options.heads();
    const auto q = blocks.take(w_qk_->forward(stream.rows), heads).flatten(2, 3);
    const auto k = unit_rows(q);
    const auto v = blocks.take(w_v->forward(stream.rows), heads).flatten(2, 3);
    const auto exists = blocks.valid().flatten(1).unsqueeze(1).expand({-1, heads, -1});

    std::vector<Round> rounds;
    for (int64_t r = 0; r < integer("rounds"); ++r) {
      rounds.push_back(hash(q, exists, r));
    }
    std::vector<Tensor> outputs, weights;
    for (const auto& round : rounds) {
      const auto sorted = [&](const Tensor& tokens) {
        const auto index = tokens.dim() == 4 ? round.order.unsqueeze(3).expand_as(tokens) : round.order;
        return tokens.gather(2, index).unflatten(2, {blocks.count, blocks.size});
      };
      // How many rounds pair query and key: the union of the rounds counts each pair once.
      Tensor count, now;
      for (const auto& other : rounds) {
        const auto bucket = sorted(other.bucket), chunk = sorted(other.chunk);
        const auto apart = chunk.unsqueeze(4) - with_chunk_before(chunk).unsqueeze(3);
        auto paired = bucket.unsqueeze(4).eq(with_chunk_before(bucket).unsqueeze(3));
        paired = paired.logical_and(apart.eq(0).logical_or(apart.eq(1)));
        now = &other == &round ? paired : now;
        count = count.defined() ? count + paired.to(q.scalar_type()) : paired.to(q.scalar_type());
      }
      const auto place = sorted(torch::arange(q.size(2), round.order.options()).expand_as(round.order));
      const auto key_place = with_chunk_before(place).unsqueeze(3);
      const auto real_key = with_chunk_before(sorted(exists).to(at::kByte)).to(at::kBool).unsqueeze(3);
      auto scores = torch::matmul(sorted(q), with_chunk_before(sorted(k)).transpose(3, 4)) /
                    std::sqrt(static_cast<double>(head_width()));
      scores = scores.masked_fill(place.unsqueeze(4).eq(key_place), kSelf) - count.clamp_min(1).log();
      scores = masked_scores(scores, now.logical_and(real_key));
      const auto weight = scores.logsumexp({4}, /*keepdim=*/true);
      const auto output = torch::matmul(drop((scores - weight).exp()), with_chunk_before(sorted(v)));

      const auto back = [&](const Tensor& chunks) {
        const auto tokens = chunks.flatten(2, 3);
        return torch::zeros_like(tokens).scatter(2, round.order.unsqueeze(3).expand_as(tokens), tokens);
      };
      outputs.push_back(back(output));
      weights.push_back(back(weight));
    }
    const auto share = torch::stack(weights).softmax(0);
    const auto mixed = (share * torch::stack(outputs)).sum(0).unflatten(2, {blocks.count, blocks.size});
    return w_o->forward(blocks.give(mixed));
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
