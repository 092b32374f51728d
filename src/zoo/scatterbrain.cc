#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "nn/transient_map.h"
#include "nn/wide_product.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/entries_together.h"
#include "zoo/kernel.h"
#include "zoo/members.h"
#include "zoo/sums_beyond.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// a·b into `out`, or to `sum`, by batches; those may have the type of products.
void put_product(Tensor out, const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == b.scalar_type() && a.scalar_type() == out.scalar_type()) {
    at::bmm_out(out, a, b);
  } else {
    out.copy_(wide_matmul(a, b));
  }
}
void add_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  if (a.scalar_type() == b.scalar_type() && a.scalar_type() == sum.scalar_type()) {
    sum.baddbmm_(a, b);
  } else {
    sum.add_(wide_matmul(a, b));
  }
}

/// How blocks of a band lie in memory: one sequence and head behind the other, `rows` blocks each, and a few more in
/// the end. Keys begin with block `reach`; the empty blocks before them are also those behind the keys of the sequence
/// and head before. So the keys beside a block are a window on neighbouring rows, and windows follow each other at one
/// distance: a batch of products without a copy. Queries begin with block 0; the last `reach` blocks are idle, and
/// their windows are partly another's.
struct Layout {
  Layout(const Tensor& blocks_, int64_t reach_)
      : batch(blocks_.size(0)),
        heads(blocks_.size(1)),
        blocks(blocks_.size(2)),
        size(blocks_.size(3)),
        reach(reach_),
        rows(blocks + reach) {}

  /// Zeros for all blocks, (B·H·rows + 2·reach)·size × width.
  Tensor room(int64_t width, const at::TensorOptions& options) const {
    return torch::zeros({(batch * heads * rows + 2 * reach) * size, width}, options);
  }
  /// All blocks of a room, (B, H, rows, size, width).
  Tensor all(const Tensor& room) const {
    return room.narrow(0, 0, batch * heads * rows * size).view({batch, heads, rows, size, room.size(1)});
  }
  Tensor queries(const Tensor& room) const {
    return all(room).narrow(2, 0, blocks);
  }
  Tensor keys(const Tensor& room) const {
    return all(room).narrow(2, reach, blocks);
  }
  /// Of each sequence and head, (B·H, rows, size, width), of a room or of all its blocks.
  Tensor by_head(const Tensor& x) const {
    return (x.dim() == 2 ? all(x) : x).view({batch * heads, rows, size, x.size(-1)});
  }
  /// What stands beside each block, (B, H, rows, (2·reach + 1)·size, width).
  Tensor windows(const Tensor& room) const {
    const auto width = room.size(1), step = size * width;
    return room.as_strided({batch, heads, rows, (2 * reach + 1) * size, width},
                           {heads * rows * step, rows * step, step, width, 1});
  }
  /// (B, H, blocks, size, width), tokens before heads in memory: joined again, heads are a view.
  Tensor tokens(int64_t width, const at::TensorOptions& options) const {
    return torch::empty({batch, blocks, size, heads, width}, options).permute({0, 3, 1, 2, 4});
  }
  std::vector<MapPiece> pieces(at::Device device) const {
    auto all = map_pieces({batch, heads, rows, 1}, size * (2 * reach + 1) * size, device);
    for (auto& piece : all) {
      piece.count[3] = size;
    }
    return all;
  }
  /// Zeros for the idle queries of x (b, h, g, size, …), whose blocks begin with `first`: zero times what another
  /// sequence has would be NaN where that is.
  void clear_idle(const Tensor& x, int64_t first) const {
    const auto busy = std::max<int64_t>(blocks - first, 0);
    if (busy < x.size(2)) {
      x.narrow(2, busy, x.size(2) - busy).zero_();
    }
  }

  /// Adds aᵀ b of pairs `a` (b, h, g, size, keys beside) of a piece to the rows of a room that the keys stand in; b
  /// (b·h·g, size, width).
  void add_to_windows(const Tensor& room, const Tensor& a, const Tensor& b, const MapPiece& piece) const {
    clear_idle(a, piece.first[2]);
    const auto first = (piece.first[0] * heads + piece.first[1]) * rows + piece.first[2], count = b.size(0);
    const auto places = room.view({-1, size, room.size(1)});
    for (int64_t step = 0; step <= 2 * reach; ++step) {
      add_product(places.narrow(0, first + step, count), a.flatten(0, 2).narrow(2, step * size, size).transpose(1, 2),
                  b);
    }
  }

  int64_t batch, heads, blocks, size, reach, rows;
};

/// The keys beyond the windows: of some sequences and heads at a time, because their sums, a matrix for every block,
/// are as large as the tokens.
struct Far {
  Far(const Layout& layout_, const Tensor& f, int64_t width) : layout(layout_) {
    // Numbers of all sums at a time: what a cache holds, or what a GPU hardly notices.
    const auto at_once = f.is_cpu() ? int64_t{1} << 19 : int64_t{1} << 24;
    at_a_time = std::max<int64_t>(1, at_once / std::max<int64_t>(layout.rows * f.size(4) * width, 1));
  }
  /// work(part): part(x) is what x (B·H, rows, …) has of these sequences and heads.
  template <class Work>
  void each(const Work& work) const {
    if (layout.blocks <= layout.reach + 1) {
      return;  // Every window reaches all blocks.
    }
    const auto all = layout.batch * layout.heads;
    for (int64_t first = 0; first < all; first += at_a_time) {
      work([&](const Tensor& x) { return layout.by_head(x).narrow(0, first, std::min(at_a_time, all - first)); });
    }
  }
  /// Σ_j g_j v_j over the keys beyond the window of each block of queries, (c·rows, m, width); g, v (c, rows, size, …).
  Tensor of(const Tensor& g, const Tensor& v) const {
    const auto own = wide_matmul(g.flatten(0, 1).transpose(1, 2), v.flatten(0, 1));
    return sums_beyond(own.unflatten(0, {-1, layout.rows}), 1, 2 * layout.reach + 1).flatten(0, 1);
  }
  /// From the gradient of that, (c·rows, m, width), to the one of every block of keys.
  Tensor back(const Tensor& d_far) const {
    return sums_beyond(d_far.unflatten(0, {-1, layout.rows}), 2 * layout.reach + 1, 1).flatten(0, 1);
  }

  const Layout& layout;
  int64_t at_a_time;
};

/// Of x (B, H, rows, …) what belongs to the piece, as a batch of matrices: a view.
Tensor matrices(const Tensor& x, const MapPiece& piece) {
  return piece.of(x, 3).flatten(0, 2);
}

/// exp(x − less) in the type of x, taken in that of `less`, which may be wider; in the place of x.
Tensor exp_less_(Tensor x, const Tensor& less) {
  if (x.scalar_type() == less.scalar_type()) {
    return x.sub_(less).exp_();
  }
  return at::exp_out(x, x - less);
}

/// y_i = Σ_j a_ij v_j / Σ_j a_ij with a_ij = exp(q_i·k_j/√d_h) in the band and φ(q_i)·φ(k_j) beyond: c_i is the larger
/// of the highest score of i in the band and of its highest product of one feature, as logarithms, g_j is φ(k_j) over
/// the largest feature of the keys in each direction, and f_i·g_j = φ(q_i)·φ(k_j)/exp(c_i). Then
///   Σ_j a_ij v_j / exp(c_i) = Σ_j beside i's block b_ij v_j + f_i·Σ_j beyond g_j v_j
/// with b_ij = exp(q_i·k_j/√d_h − c_i) in the band and f_i·g_j outside of it, and a column of ones beside v has the sum
/// of the weights. (The estimate of all pairs, less that of the band, would be rounding where a pair of the band has by
/// far the largest estimate: it may be exp(|w|²/2) times what it estimates.) Pairs exist for some queries at a time,
/// and again for their gradients.
struct Mean : torch::autograd::Function<Mean> {
  /// q, k, v (B, H, blocks, size, d_h); directions (m, d_h); band (B or 1, 1, blocks, size, keys beside): whether a key
  /// exists and is in the band; exists (B, 1, blocks, size, 1): whether there is a token, nothing where all are.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& directions, const Tensor& band, const std::optional<Tensor>& exists) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const Layout layout(q, (band.size(4) / band.size(3) - 1) / 2);
    const auto width = q.size(4), count = directions.size(0);
    const auto options = q.options();
    const auto wide = ops::accumulation_type(q.scalar_type());
    const auto of_sums = options.dtype(product_type(q.scalar_type()));
    const auto root = std::sqrt(static_cast<double>(width));

    Problem problem;
    problem.outside = at::constant_pad_nd(band, {0, 0, 0, 0, 0, layout.reach}).logical_not();
    problem.q = layout.room(width, options);
    auto scaled = layout.queries(problem.q);
    at::mul_out(scaled, q, torch::scalar_tensor(1 / root, at::kDouble));
    problem.k = layout.room(width, options);
    layout.keys(problem.k).copy_(k);
    problem.v = layout.room((width / kEntriesTogether + 1) * kEntriesTogether, options);
    layout.keys(problem.v).narrow(4, 0, width).copy_(v);
    layout.keys(problem.v).select(4, width).fill_(1);
    // Rounded as the products round them, so that forward and backward have the same directions.
    const auto rounded = [&](double factor) {
      auto scaled_directions = torch::empty(directions.sizes(), options);
      at::mul_out(scaled_directions, directions, torch::scalar_tensor(factor, at::kDouble));
      return scaled_directions.to(of_sums.dtype());
    };
    problem.of_q = rounded(std::sqrt(root));
    problem.of_k = rounded(1 / std::sqrt(root));

    // w·x' and |x'|²/2 of queries and keys, whose difference is the logarithm of √m φ(x).
    const auto log_q = layout.all(wide_matmul(problem.q, problem.of_q.t()));
    const auto log_k = layout.keys(wide_matmul(problem.k, problem.of_k.t()));
    const auto off = [&](const Tensor& x, double factor) {
      return at::linalg_vector_norm(x, 2, {4}, /*keepdim=*/true, wide).square_().mul_(factor / 2);
    };
    const auto off_k = off(layout.keys(problem.k), 1 / root);
    auto exponents = log_k - off_k;
    // By direction: what no product of features exceeds is then one of them.
    const auto highest_k = masked_scores(exponents, exists.value_or(Tensor())).amax({2, 3}, true);
    problem.g = layout.room(count, options);
    auto g = layout.keys(problem.g);
    // Exponents are rounded before the largest is taken away, never after: then none is above 0, however large.
    at::exp_out(g, exponents.sub_(highest_k));
    if (exists) {
      g.masked_fill_(exists->logical_not(), 0);
    }
    // The logarithms of f_i but for w·x', the largest features of the keys and c_i.
    const auto rest = off(layout.all(problem.q), -root).sub_(std::log(static_cast<double>(count)));

    problem.f = torch::empty(log_q.sizes(), options);
    problem.highest = torch::empty_like(rest);
    auto sums = torch::empty({layout.batch, layout.heads, layout.rows, layout.size, problem.v.size(1)}, of_sums);
    for (const auto& piece : layout.pieces(q.device())) {
      auto scores = problem.scores(layout, piece);
      // What lies outside is replaced below, whatever exp makes of it; of hidden scores it would be slow on a CPU.
      const auto in_band = scores.masked_fill(piece.of(problem.outside, 3), low_score(scores.scalar_type()));
      auto highest = piece.of(problem.highest, 3), f = piece.of(problem.f, 3);
      auto exponents_q = (piece.of(log_q, 3) + piece.of(highest_k, 2)).add_(piece.of(rest, 3));
      at::maximum_out(highest, in_band.amax({4}, true), exponents_q.amax({4}, true));
      at::exp_out(f, exponents_q.sub_(highest));
      const auto map = problem.with_estimates(exp_less_(scores, highest), layout, piece);
      put_product(matrices(sums, piece), map.flatten(0, 2), matrices(layout.windows(problem.v), piece));
    }
    layout.clear_idle(problem.f, 0);
    const Far far(layout, problem.f, problem.v.size(1));
    far.each([&](const auto& part) {
      const auto beyond = far.of(part(problem.g), part(problem.v));
      part(sums).flatten(0, 1).baddbmm_(part(problem.f).flatten(0, 1).to(of_sums.dtype()), beyond);
    });

    problem.weight = sums.narrow(2, 0, layout.blocks).narrow(4, width, 1).clone();
    // Less only where the estimate of a pair in the band is more than 10³⁰ times all that counts (heads of 200
    // columns).
    problem.weight.clamp_min_(1e-30);
    if (exists) {
      problem.weight.masked_fill_(exists->logical_not(), 1);
    }
    problem.y = layout.tokens(width, options);
    at::div_out(problem.y, sums.narrow(2, 0, layout.blocks).narrow(4, 0, width), problem.weight);
    problem.save(context);
    return problem.y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    check_first_derivative("scatterbrain");
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const Problem problem(context->get_saved_variables());
    const auto& y = problem.y;
    const Layout layout(y, (problem.outside.size(4) / problem.outside.size(3) - 1) / 2);
    const auto width = y.size(4);
    const auto root = std::sqrt(static_cast<double>(width));
    const auto options = y.options(), of_sums = options.dtype(product_type(y.scalar_type()));
    const auto dy = gradients[0].to(y.scalar_type());

    // dy_i·v_j − dy_i·y_i over the sum of the weights is the gradient of a_ij/exp(c_i): a product with v_j and its one.
    const auto given = layout.room(problem.v.size(1), of_sums);
    auto of_values = layout.queries(given).narrow(4, 0, width), of_one = layout.queries(given).narrow(4, width, 1);
    at::div_out(of_values, dy, problem.weight);
    at::div_out(of_one, dot_rows(dy, y).neg_(), problem.weight);

    const auto dq = torch::empty_like(layout.all(problem.q), of_sums), df = torch::empty_like(problem.f, of_sums);
    const auto dk = torch::zeros_like(problem.k, of_sums), dg = torch::zeros_like(problem.g, of_sums);
    const auto dv = layout.room(width, of_sums);
    for (const auto& piece : layout.pieces(y.device())) {
      const auto q = matrices(layout.all(problem.q), piece), f = matrices(problem.f, piece);
      const auto dy_piece = matrices(layout.all(given), piece);
      auto exact = exp_less_(problem.scores(layout, piece), piece.of(problem.highest, 3))
                       .masked_fill_(piece.of(problem.outside, 3), 0);
      const auto map = problem.with_estimates(exact, layout, piece);
      auto pull = wide_matmul(dy_piece, matrices(layout.windows(problem.v), piece).transpose(1, 2)).view(exact.sizes());
      const auto slope = exact.mul_(pull);
      pull.mul_(piece.of(problem.outside, 3));
      layout.add_to_windows(dv, map, dy_piece.narrow(2, 0, width), piece);
      layout.add_to_windows(dk, slope, q, piece);
      layout.add_to_windows(dg, pull, f, piece);
      put_product(matrices(dq, piece), slope.flatten(0, 2), matrices(layout.windows(problem.k), piece));
      put_product(matrices(df, piece), pull.flatten(0, 2), matrices(layout.windows(problem.g), piece));
    }
    const Far far(layout, problem.f, problem.v.size(1));
    far.each([&](const auto& part) {
      const auto flat = [&](const Tensor& x) { return part(x).flatten(0, 1); };
      add_product(flat(df), flat(given), far.of(part(problem.g), part(problem.v)).transpose(1, 2));
      const auto d_own = far.back(wide_matmul(flat(problem.f).transpose(1, 2), flat(given)));
      add_product(flat(dg), flat(problem.v), d_own.transpose(1, 2));
      add_product(flat(dv), flat(problem.g), d_own.narrow(2, 0, width));
    });

    // φ(x)' = φ(x) (w d_h^−¼ − x/√d_h); queries stand there over √d_h.
    const auto through_features = [](const Tensor& dx, const Tensor& x, const Tensor& d_features,
                                     const Tensor& features, const Tensor& directions, double factor) {
      const auto logarithms = d_features.view({-1, features.size(-1)}).mul_(features.view({-1, features.size(-1)}));
      dx.view({-1, x.size(1)}).addmm_(logarithms, directions);
      dx.view({-1, x.size(1)}).addcmul_(x, logarithms.sum(1, /*keepdim=*/true), -factor);
    };
    through_features(dq, layout.all(problem.q).view({-1, width}), df, problem.f, problem.of_q, root);
    through_features(dk, problem.k, dg, problem.g, problem.of_k, 1 / root);
    auto all_q = layout.tokens(width, options);
    at::mul_out(all_q, dq.narrow(2, 0, layout.blocks), torch::scalar_tensor(1 / root, at::kDouble));
    const auto all_k = layout.tokens(width, options).copy_(layout.keys(dk));
    const auto all_v = layout.tokens(width, options).copy_(layout.keys(dv));
    return {all_q, all_k, all_v, {}, {}, {}};
  }

 private:
  /// What backward knows again: rooms of q/√d_h, k, v with its column of ones and g; f (B, H, rows, size, m); highest,
  /// c_i (…, 1); the sum of the weights, (B, H, blocks, size, 1), and y; outside the band, (B or 1, 1, rows, size, keys
  /// beside); directions for q/√d_h and for k.
  struct Problem {
    Problem() = default;
    explicit Problem(const std::vector<Tensor>& saved) {
      auto next = saved.begin();
      for (auto* field : fields()) {
        *field = *next++;
      }
    }
    void save(torch::autograd::AutogradContext* context) {
      std::vector<Tensor> all;
      for (const auto* field : fields()) {
        all.push_back(*field);
      }
      context->save_for_backward(all);
    }
    std::vector<Tensor*> fields() {
      return {&q, &k, &v, &g, &f, &highest, &weight, &y, &outside, &of_q, &of_k};
    }
    /// Of the pairs of a piece, (b, h, g, size, keys beside).
    Tensor scores(const Layout& layout, const MapPiece& piece) const {
      return products(matrices(layout.all(q), piece), matrices(layout.windows(k), piece), piece);
    }
    /// The exact pairs of a piece, and outside the band their estimates; keys that do not exist have none.
    Tensor with_estimates(const Tensor& exact, const Layout& layout, const MapPiece& piece) const {
      auto estimates = products(matrices(f, piece), matrices(layout.windows(g), piece), piece);
      return at::where_out(estimates, piece.of(outside, 3), estimates, exact);
    }
    static Tensor products(const Tensor& a, const Tensor& b, const MapPiece& piece) {
      return wide_matmul(a, b.transpose(1, 2)).view({piece.count[0], piece.count[1], piece.count[2], -1, b.size(1)});
    }
    Tensor q, k, v, g, f, highest, weight, y, outside, of_q, of_k;
  };
};

class Scatterbrain : public ZooAttention {
 public:
  Scatterbrain(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("scatterbrain", options_, values_) {
    register_projections();
    hold_buffer(features_, "features", orthogonal_features(integer("features"), head_width(), seed()));
  }

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto blocks = Blocks::up_to(stream.sequences, integer("window") / 2);
    const auto heads = options.heads();
    const auto taken = [&](torch::nn::Linear& layer) { return blocks.take(layer->forward(stream.rows), heads); };
    const auto q = taken(w_q), k = taken(w_k), v = taken(w_v);
    const auto real = blocks.real();
    const auto exists = real.defined() ? std::optional(real.unsqueeze(1).unsqueeze(4)) : std::nullopt;
    return w_o->forward(blocks.give(Mean::apply(q, k, v, features_, Band(blocks).mask, exists)));
  }

  at::Tensor features_;  // (m, d_h), shared by the heads
};

}  // namespace

Member scatterbrain_member() {
  Member member{
      .name = "scatterbrain",
      .title = "Scatterbrain",
      .paper = "Chen et al., Scatterbrain: Unifying Sparse and Low-rank Attention, NeurIPS 2021, arXiv 2110.15343",
      .about =
          "Exact in a band, estimated elsewhere, one normaliser: y_i = Σ_j a_ij v_j / Σ_j a_ij with a_ij = "
          "exp(q_i·k_j/√d_h) where |i − j| ≤ ⌊w/2⌋ and φ(q_i)·φ(k_j) beyond, φ the Performer's positive features "
          "exp(w·x' − |x'|²/2)/√m on orthogonal directions from the seed. The paper lets any sparse attention say "
          "which pairs are exact, hashing in the first place; this is the band that its authors take on Long-Range "
          "Arena.",
      .options = {{"window", "64", "width w of the band", 2, {}},
                  {"features", "32", "random directions m", 1, {}},
                  seed_option()},
      .capabilities = {},
      .build = built<Scatterbrain>};
  member.capabilities.deterministic = false;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·(window + features)";
  return member;
}

}  // namespace dba::zoo
