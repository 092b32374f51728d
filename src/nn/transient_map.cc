#include "nn/transient_map.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dba/ops.h"
#include "nn/wide_product.h"
#include "ops/checks.h"

namespace dba {
namespace {

using at::Tensor;

/// The type of scores and weights: 16 bits multiply, 32 hold the map.
at::ScalarType wide_type(const Tensor& x) {
  return ops::accumulation_type(x.scalar_type());
}

/// a (b, h, g, q, w) times b (b, h, g or 1, w, t); a shared b is not copied for every block.
Tensor product(const Tensor& a, const Tensor& b) {
  if (b.size(2) == a.size(2)) {
    return wide_matmul(a, b);
  }
  return wide_matmul(a.flatten(2, 3), b.squeeze(2)).unflatten(2, {a.size(2), a.size(3)});
}

/// Adds aᵀ b over the queries to `sum` (b, h, g or 1, m, w), over blocks too where that is shared; a (b, h, g, q, m).
void add_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  if (sum.size(2) == a.size(2)) {
    sum.add_(wide_matmul(a.transpose(3, 4), b));
  } else {
    sum.add_(wide_matmul(a.flatten(2, 3).transpose(2, 3), b.flatten(2, 3)).unsqueeze(2));
  }
}

struct TransientMap : torch::autograd::Function<TransientMap> {
  /// tensors: the queries, then keys and values of every part; masks: one for each; added and weight: numbers on top of
  /// the scores, or neither; rng: the dropout's.
  static Tensor forward(torch::autograd::AutogradContext* context, at::TensorList tensors,
                        const std::vector<Tensor>& masks, const std::optional<Tensor>& added,
                        const std::optional<Tensor>& weight, const std::optional<Tensor>& rng, double dropout) {
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    auto saved = tensors.vec();
    saved.insert(saved.end(), masks.begin(), masks.end());
    saved.insert(saved.end(), {added.value_or(Tensor()), weight.value_or(Tensor()), rng.value_or(Tensor())});
    context->save_for_backward(saved);
    context->saved_data["dropout"] = dropout;
    const Problem problem(saved, dropout);
    const auto& q = problem.queries;
    const auto width = problem.parts[0].values.size(4);
    // Tokens before heads: joined again, heads are a view.
    auto out = torch::empty({q.size(0), q.size(2), q.size(3), q.size(1), width}, q.options()).permute({0, 3, 1, 2, 4});
    for (const auto& piece : problem.pieces) {
      const auto map = problem.map(piece);
      const auto dropped = map.kept.defined() ? map.weights * map.kept : map.weights;
      Tensor sum;
      for (const auto& part : problem.parts) {
        const auto one = product(part.of(dropped), piece.of(part.values, 3));
        sum = sum.defined() ? sum.add_(one) : one;
      }
      piece.of(out, 4).copy_(sum);
    }
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Problem problem(context->get_saved_variables(), context->saved_data["dropout"].toDouble());
    if (problem.parts.size() > 1) {
      check_first_derivative("zoo");
    }
    const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
    const auto& q = problem.queries;
    const auto type = q.scalar_type();
    const auto dy = gradients[0].to(type);
    auto dq = torch::empty_like(q);
    // Several pieces add to the gradients of a key.
    std::vector<Tensor> dk, dv;
    for (const auto& part : problem.parts) {
      dk.push_back(torch::zeros_like(part.keys, part.keys.options().dtype(wide_type(q))));
      dv.push_back(torch::zeros_like(part.values, part.values.options().dtype(wide_type(q))));
    }
    Tensor d_added, d_weight;  // the former without the weight until the end
    if (problem.added.defined()) {
      d_added = torch::zeros_like(problem.added, problem.added.options().dtype(wide_type(q)));
      d_weight = torch::zeros({}, d_added.options());
    }
    for (const auto& piece : problem.pieces) {
      const auto map = problem.map(piece);
      const auto asking = piece.of(q, 4), given = piece.of(dy, 4);
      const auto dropped = map.kept.defined() ? map.weights * map.kept : map.weights;
      std::vector<Tensor> pulls;
      for (size_t i = 0; i < problem.parts.size(); ++i) {
        const auto& part = problem.parts[i];
        add_product(piece.of(dv[i], 3), part.of(dropped), given);
        pulls.push_back(product(given, piece.of(part.values, 3).transpose(3, 4)));
      }
      auto pull = (pulls.size() == 1 ? pulls[0] : torch::cat(pulls, 4)).to(wide_type(q));
      pulls.clear();
      if (map.kept.defined()) {
        pull.mul_(map.kept);
      }
      const auto slope = at::_softmax_backward_data(pull, map.weights, 4, map.weights.scalar_type());
      Tensor sum;
      for (size_t i = 0; i < problem.parts.size(); ++i) {
        const auto& part = problem.parts[i];
        if (part.mask.defined()) {
          part.of(slope).masked_fill_(piece.of(part.mask, 4).logical_not(), 0);
        }
        add_product(piece.of(dk[i], 3), part.of(slope), asking);
        const auto one = product(part.of(slope), piece.of(part.keys, 3));
        sum = sum.defined() ? sum.add_(one) : one;
      }
      piece.of(dq, 4).copy_(sum.mul_(problem.scale));
      if (d_added.defined()) {
        const auto scores = piece.of(problem.added, 4);
        const auto pulled = slope.sum_to_size(scores.sizes());
        d_weight.add_((pulled * scores).sum());
        piece.of(d_added, 4).add_(pulled);
      }
    }
    torch::autograd::variable_list all{dq};
    for (size_t i = 0; i < problem.parts.size(); ++i) {
      all.push_back(dk[i].mul_(problem.scale).to(type));
      all.push_back(dv[i].to(type));
    }
    all.push_back({});  // the masks
    if (d_added.defined()) {
      all.push_back(d_added.mul_(problem.weight).to(problem.added.scalar_type()));
      all.push_back(d_weight.to(problem.weight.scalar_type()));
    } else {
      all.resize(all.size() + 2);
    }
    all.resize(all.size() + 2);
    return all;
  }

 private:
  struct Part {
    Tensor keys, values, mask;
    int64_t first;  ///< its first column in a map of all keys

    Tensor of(const Tensor& map) const {
      return map.narrow(4, first, keys.size(3));
    }
  };

  struct Map {
    Tensor weights;  ///< (b, h, g, q, all keys)
    Tensor kept;     ///< the dropout's mask over the keep rate; undefined without any
  };

  struct Problem {
    /// saved: 1 + 3·parts + 3 tensors as `forward` saves them.
    Problem(const std::vector<Tensor>& saved, double dropout_)
        : queries(saved.front()),
          added(saved[saved.size() - 3]),
          weight(saved[saved.size() - 2]),
          rng(saved.back()),
          dropout(dropout_),
          scale(1.0 / std::sqrt(static_cast<double>(queries.size(4)))),
          sizes({queries.size(0), queries.size(1), queries.size(2), queries.size(3)}) {
      const auto count = (saved.size() - 4) / 3;
      for (size_t i = 0; i < count; ++i) {
        parts.push_back({saved[1 + 2 * i], saved[2 + 2 * i], saved[1 + 2 * count + i], keys});
        keys += parts.back().keys.size(3);
      }
      pieces = map_pieces(sizes, keys, queries.device());
    }

    Map map(const MapPiece& piece) const {
      // Products that are wider than the queries are scaled themselves, which rounds less.
      const bool wider = product_type(queries.scalar_type()) != queries.scalar_type();
      const auto asking = wider ? piece.of(queries, 4) : piece.of(queries, 4) * scale;
      std::vector<Tensor> scores;
      for (const auto& part : parts) {
        scores.push_back(product(asking, piece.of(part.keys, 3).transpose(3, 4)).to(wide_type(queries)));
        if (wider) {
          scores.back().mul_(scale);
        }
        if (added.defined()) {
          scores.back().addcmul_(part.of(piece.of(added, 4)).to(wide_type(queries)), weight.to(wide_type(queries)));
        }
        if (part.mask.defined()) {
          scores.back().masked_fill_(piece.of(part.mask, 4).logical_not(), low_score(wide_type(queries)));
        }
      }
      Map map;
      map.weights = (scores.size() == 1 ? scores[0] : torch::cat(scores, 4)).softmax(4);
      if (dropout > 0) {
        map.kept = piece.dropout_mask(sizes, keys, dropout, rng, map.weights.scalar_type());
      }
      return map;
    }

    const Tensor queries, added, weight, rng;
    const double dropout, scale;
    const std::array<int64_t, 4> sizes;
    std::vector<Part> parts;
    int64_t keys = 0;
    std::vector<MapPiece> pieces;
  };
};

}  // namespace

double low_score(at::ScalarType type) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "low_score",
                                         [] { return static_cast<double>(std::numeric_limits<scalar_t>::lowest()); });
}

void check_first_derivative(const char* name) {
  TORCH_CHECK(!at::GradMode::is_enabled(), "dba::", name,
              ": double backward is not supported (the backward was asked to build a graph); ask for first derivatives "
              "only");
}

at::Tensor MapPiece::of(const at::Tensor& x, size_t axes) const {
  auto part = x;
  for (size_t axis = 0; axis < axes; ++axis) {
    const auto at = static_cast<int64_t>(axis);
    part = x.size(at) == 1 ? part : part.narrow(at, first[axis], count[axis]);
  }
  return part;
}

at::Tensor MapPiece::dropout_mask(const std::array<int64_t, 4>& sizes, int64_t keys, double dropout,
                                  const at::Tensor& rng, at::ScalarType type) const {
  // Few operations: on a GPU each would be a kernel for some integers.
  const auto numbers = [&](int64_t from, int64_t step, size_t axis) {
    return torch::arange(from, from + step * count[axis], step, rng.options());
  };
  auto block = numbers((first[0] * sizes[1] + first[1]) * sizes[2] + first[2], sizes[1] * sizes[2], 0);
  if (count[1] > 1) {
    block = (block.unsqueeze(1) + numbers(0, sizes[2], 1)).flatten();
  }
  if (count[2] > 1) {
    block = (block.unsqueeze(1) + numbers(0, 1, 2)).flatten();
  }
  return ops::dropout_mask({dropout, rng}, ops::kSiteCore, block, torch::full_like(block, first[3]), count[3], keys,
                           type)
      .view({count[0], count[1], count[2], count[3], keys});
}

std::vector<MapPiece> map_pieces(const std::array<int64_t, 4>& sizes, int64_t keys, at::Device device) {
  const auto pairs = device.is_cpu() ? (int64_t{1} << 17) * at::get_num_threads() : int64_t{1} << 24;
  std::array<int64_t, 4> step{};
  auto left = pairs / std::max<int64_t>(keys, 1);
  for (const size_t axis : {3, 2, 1, 0}) {
    step[axis] = std::clamp<int64_t>(left, 1, std::max<int64_t>(sizes[axis], 1));
    left /= std::max<int64_t>(sizes[axis], 1);
  }
  std::vector<MapPiece> pieces;
  MapPiece piece{};
  const auto cut = [&](const auto& self, size_t axis) -> void {
    if (axis == sizes.size()) {
      pieces.push_back(piece);
      return;
    }
    for (int64_t first = 0; first < sizes[axis]; first += step[axis]) {
      piece.first[axis] = first;
      piece.count[axis] = std::min(step[axis], sizes[axis] - first);
      self(self, axis + 1);
    }
  };
  cut(cut, 0);
  return pieces;
}

at::Tensor transient_map_attention(const at::Tensor& queries, const std::vector<Seen>& seen, double dropout) {
  return transient_map_attention(queries, seen, AddedScores(), dropout);
}

at::Tensor transient_map_attention(const at::Tensor& queries, const std::vector<Seen>& seen, const AddedScores& added,
                                   double dropout) {
  std::vector<Tensor> tensors{queries}, masks;
  for (const auto& part : seen) {
    tensors.insert(tensors.end(), {part.keys, part.values});
    masks.push_back(part.mask);
  }
  const auto given = [](const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; };
  return TransientMap::apply(at::TensorList(tensors), masks, given(added.scores), given(added.weight),
                             given(ops::Dropout::draw(dropout, queries.device()).rng), dropout);
}

}  // namespace dba
