#include <torch/torch.h>

#include <cmath>
#include <numbers>
#include <optional>

#include "nn/transformed.h"
#include "ops/checks.h"
#include "zoo/blocks.h"
#include "zoo/members.h"
#include "zoo/real_spectrum.h"

namespace dba::zoo {
namespace {

/// The discrete Fourier transform along the first `lengths` (B) of n tokens, x (B, n, d) complex with zeros beyond
/// them: Bluestein's, Σ_j x_j w^(jt) = w^(t²/2) Σ_j (x_j w^(j²/2)) w^(−(t−j)²/2), a convolution whose size may be
/// chosen while w = e^(−2πi/length) is the sequence's own. So sequences of any lengths go through together.
at::Tensor transform_each(const at::Tensor& x, const at::Tensor& lengths) {
  const auto n = x.size(1);
  const auto place = torch::arange(n, lengths.options()).unsqueeze(0);
  const auto twice = 2 * lengths.clamp_min(1).unsqueeze(1);
  // j² modulo 2·length: the angle stays exact however long the sequence.
  const auto angle = (place * place).remainder(twice).to(at::kDouble) / twice * (2 * std::numbers::pi);
  const auto chirp = torch::polar(torch::ones_like(angle), -angle).to(x.scalar_type());  // (B, n)
  int64_t size = 1;
  while (size < 2 * n - 1) {
    size *= 2;
  }
  const auto inverse = chirp.conj();
  auto kernel = torch::cat({inverse, inverse.new_zeros({x.size(0), size - 2 * n + 1}), inverse.slice(1, 1).flip(1)}, 1);
  const auto product = torch::fft_fft(x * chirp.unsqueeze(2), size, 1) * torch::fft_fft(kernel, size, 1).unsqueeze(2);
  return torch::fft_ifft(product, size, 1).slice(1, 0, n) * chirp.unsqueeze(2);
}

/// Re(F_n X F_d) of x (B, n, d), taken in float32 for 16 bits; lengths (B), with zeros in x beyond them, where they are
/// not all n. Of real rows half the columns are enough, see real_spectrum.
at::Tensor transformed(const at::Tensor& x, const std::optional<at::Tensor>& lengths) {
  const auto type = x.scalar_type();
  const auto wide = x.to(ops::accumulation_type(type));
  const auto width = x.size(2);
  if (!lengths) {
    const auto half = at::_fft_r2c(wide, {1, 2}, /*normalization=*/0, /*onesided=*/true);
    return is_transformed(x) ? real_spectrum_composed(half, width, type) : real_spectrum(half, width, type);
  }
  const auto others = width - (width / 2 + 1);
  const auto some = torch::real(transform_each(torch::fft_rfft(wide, std::nullopt, 2), *lengths));
  const auto length = lengths->clamp_min(1).unsqueeze(1);
  const auto opposite = (-torch::arange(x.size(1), lengths->options())).remainder(length).unsqueeze(2);  // (B, n, 1)
  const auto again = some.narrow(2, 1, others).gather(1, opposite.expand({-1, -1, others})).flip(2);
  return torch::cat({some, again}, 2).to(type);
}

/// The same with its gradient: the transforms' matrices are symmetric, so it is Re(F_n dY F_d).
struct Transformed : torch::autograd::Function<Transformed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::optional<at::Tensor>& lengths) {
    context->saved_data["lengths"] = lengths;
    return transformed(x, lengths);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {Transformed::apply(gradients[0], context->saved_data["lengths"].toOptional<at::Tensor>()), {}};
  }
};

/// For transforms of functions by PyTorch's own operations, and without a node where nobody asks for a gradient.
at::Tensor transform(const at::Tensor& x, const std::optional<at::Tensor>& lengths) {
  const bool has_gradient = at::GradMode::is_enabled() && x.requires_grad();
  return is_transformed(x) || !has_gradient ? transformed(x, lengths) : Transformed::apply(x, lengths);
}

class FNet : public ZooAttention {
 public:
  FNet(const DBAttentionOptions& options_, const OptionValues& values_) : ZooAttention("fnet", options_, values_) {}

 private:
  at::Tensor mix(const Stream& stream, const Stream&) override {
    const auto& [rows, sequences] = stream;
    const auto blocks = Blocks::whole(sequences);
    const auto lengths = blocks.one_length() ? std::nullopt : std::optional(blocks.lengths());
    return blocks.give_padded(transform(blocks.take_padded(rows), lengths));
  }
};

}  // namespace

Member fnet_member() {
  Member member{.name = "fnet",
                .title = "FNet",
                .paper = "Lee-Thorp et al., FNet: Mixing Tokens with Fourier Transforms, NAACL 2022, arXiv 2105.03824",
                .about =
                    "No attention at all: Y = Re(F_n X F_d), the real part of Fourier transforms over the tokens "
                    "and over the width, without parameters and without heads. The transform over tokens has each "
                    "sequence's own length, where the released code transforms the padding with it.",
                .options = {},
                .capabilities = {},
                .build = built<FNet>};
  member.capabilities.growth = Growth::linearithmic;
  member.capabilities.complexity = "n·log n";
  return member;
}

}  // namespace dba::zoo
