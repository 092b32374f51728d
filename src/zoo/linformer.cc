#include <torch/torch.h>

#include <cmath>

#include "zoo/block_attention.h"
#include "zoo/kernel.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

class Linformer : public ZooAttention {
 public:
  Linformer(const DBAttentionOptions& options_, const OptionValues& values_)
      : ZooAttention("linformer", options_, values_) {
    register_projections();
    const auto& share = choice("share");
    const auto heads = share == "none" ? options.heads() : 1;
    const auto shape = std::vector<int64_t>{heads, integer("k"), integer("max_length")};
    hold_parameter(e_, "e", torch::empty(shape));
    if (share != "keys_and_values") {
      hold_parameter(f_, "f", torch::empty(shape));
    }
  }

 private:
  void draw_parameters() override {
    const auto deviation = 1.0 / std::sqrt(static_cast<double>(integer("k")));
    torch::nn::init::normal_(e_, 0.0, deviation);
    if (f_.defined()) {
      torch::nn::init::normal_(f_, 0.0, deviation);
    }
  }

  at::Tensor mix(const Stream& queries, const Stream& memory) override {
    const auto asking = Blocks::whole(queries.sequences);
    const auto asked = Blocks::whole(memory.sequences);
    const auto heads = options.heads();
    const auto q = asking.take_whole(w_q->forward(queries.rows), heads);
    const auto [k, v] = compressed(memory, asked);
    return w_o->forward(asking.give_whole(attend_keys(q, k, v, /*mask=*/{}, drop_rate())));
  }

  /// E K and F V, (B, H, k, d_h). Tokens that do not exist are zero rows: what E says of their positions multiplies
  /// nothing.
  std::pair<at::Tensor, at::Tensor> compressed(const Stream& memory, const Blocks& asked) {
    const auto heads = options.heads();
    const auto e = first_of(e_, 2, asked.size);
    const auto f = f_.defined() ? first_of(f_, 2, asked.size) : e;
    if (e.size(0) > 1) {
      return {torch::matmul(e, asked.take_whole(w_k->forward(memory.rows), heads)),
              torch::matmul(f, asked.take_whole(w_v->forward(memory.rows), heads))};
    }
    const auto sums_of = [&](const at::Tensor& matrix, const at::Tensor& rows) {
      return torch::bmm(matrix.expand({asked.batch, -1, -1}), asked.take_padded(rows));  // (B, k, d)
    };
    const bool few = are_few({asked.batch, asked.size, options.d()}, memory.rows.device());
    if (few || projecting_first_is_less(memory.rows.size(0), asked)) {
      return {by_heads(sums_of(e, w_k->forward(memory.rows)), heads),
              by_heads(sums_of(f, w_v->forward(memory.rows)), heads)};
    }
    // Where heads share E, E (X W) = (E X) W: the projections see k rows of each sequence, and not its tokens.
    const auto real = asked.real_whole();
    const auto weight_of_bias = [&](const at::Tensor& matrix) {  // (B or 1, k, 1)
      return !options.bias()  ? at::Tensor()
             : real.defined() ? torch::matmul(matrix, real.to(matrix.scalar_type()).unsqueeze(2))
                              : matrix.sum(2, /*keepdim=*/true);
    };
    const auto projected = [&](torch::nn::Linear& layer, const at::Tensor& sums, const at::Tensor& weight) {
      const auto out = torch::matmul(sums, layer->weight.t());
      return by_heads(weight.defined() ? at::addcmul(out, weight, layer->bias).to(out.scalar_type()) : out, heads);
    };
    const auto sums = sums_of(e, memory.rows), weight = weight_of_bias(e);
    return {projected(w_k, sums, weight),
            f_.defined() ? projected(w_v, sums_of(f, memory.rows), weight_of_bias(f)) : projected(w_v, sums, weight)};
  }

  /// Multiply-adds of E (X W) and F (X W), 2 N d² + 2 P k d with P places for the N tokens, against those of (E X) W
  /// and (F X) W, P k d for each matrix that there is and 2 B k d²; all over d.
  bool projecting_first_is_less(int64_t tokens, const Blocks& asked) const {
    const auto d = options.d(), k = e_.size(1), places = asked.batch * asked.size;
    return 2 * tokens * d + (f_.defined() ? 0 : places * k) <= 2 * asked.batch * k * d;
  }

  at::Tensor e_, f_;  // (1 or H, k, max_length)
};

}  // namespace

Member linformer_member() {
  Member member{
      .name = "linformer",
      .title = "Linformer",
      .paper = "Wang et al., Linformer: Self-Attention with Linear Complexity, arXiv 2006.04768",
      .about =
          "Keys and values are compressed in length by learned matrices, one column for each position: Y = "
          "softmax over k((Q (E K)ᵀ)/√d_h) (F V) with E, F k × max_length, of which a sequence of n tokens uses the "
          "first n columns. E and F may be one matrix, may be shared by the heads, or stand for each head. E and F "
          "start as N(0, 1/k). Long-Range Arena's code has no mask: keys and values of padding enter E K and E V.",
      .options = {{"k", "128", "length that keys and values are compressed to", 1, {}},
                  {"share", "keys_and_values", "who shares E and F", 0, {"keys_and_values", "heads", "none"}},
                  max_length_option()},
      .capabilities = {},
      .build = built<Linformer>};
  member.capabilities.learned_per_position = true;
  member.capabilities.needs_max_length = true;
  member.capabilities.cross_attention = true;
  member.capabilities.dropout = true;
  member.capabilities.growth = Growth::linear;
  member.capabilities.complexity = "n·k";
  return member;
}

}  // namespace dba::zoo
