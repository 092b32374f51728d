#include "nn/dba_checks.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>

#include "nn/named_choice.h"
#include "nn/rows.h"
#include "ops/checks.h"

namespace dba {
namespace {

constexpr NamedChoice<Order> kOrders[] = {{"two_pass", Order::two_pass},
                                          {"projected", Order::projected},
                                          {"direct", Order::direct},
                                          {"auto", Order::automatic}};

}  // namespace

Order parse_order(const std::string& name) {
  return parse_choice("parse_order", name, kOrders);
}

std::string to_string(Order order) {
  return name_of(order, kOrders);
}

void check_options(const char* module, const DBAttentionOptions& options) {
  TORCH_CHECK(options.d() >= 1, "dba::", module, ": d must be 1 or more, got ", options.d());
  TORCH_CHECK(options.heads() >= 1, "dba::", module, ": heads must be 1 or more, got ", options.heads());
  TORCH_CHECK(options.d() % options.heads() == 0, "dba::", module,
              ": d must be divisible by heads, got d = ", options.d(), " and heads = ", options.heads());
  TORCH_CHECK(options.d_p() >= 1, "dba::", module, ": d_p must be 1 or more, got ", options.d_p());
  TORCH_CHECK(options.d_in() >= 1, "dba::", module, ": d_in must be 1 or more, got ", options.d_in());
  check_rate(module, "dropout", options.dropout());
  check_rate(module, "z_dropout", options.z_dropout());
  if (options.form() == Form::released) {
    TORCH_CHECK(options.normalise() == Normalise::softmax, "dba::", module,
                ": normalise must be softmax in form released, got ", to_string(options.normalise()));
    TORCH_CHECK(options.compress_length(), "dba::", module,
                ": compress_length must be true in form released, got false; the ablation is of form paper");
    TORCH_CHECK(options.compress_width(), "dba::", module,
                ": compress_width must be true in form released, got false; the ablation is of form paper");
  }
}

int64_t width_per_head(const DBAttentionOptions& options) {
  if (options.form() == Form::paper && !options.compress_width()) {
    return options.d() / options.heads();
  }
  return (options.d_in() + options.heads() - 1) / options.heads();
}

void warn_of_rounding(const char* module, const DBAttentionOptions& options) {
  const auto width = width_per_head(options);
  if (options.compress_width() && width * options.heads() != options.d_in()) {
    TORCH_WARN("dba::", module, ": d_in = ", options.d_in(), " does not divide into ", options.heads(),
               " heads; rounded up to ", width * options.heads(), " (", width, " per head)");
  }
}

void check_type(const char* module, const char* argument, const at::Tensor& x, const at::Tensor& parameter) {
  TORCH_CHECK(x.scalar_type() == parameter.scalar_type() || at::autocast::is_autocast_enabled(x.device().type()),
              "dba::", module, ": ", argument, " must be of the parameters' type ",
              c10::toString(parameter.scalar_type()), ", got ", ops::describe(x));
}

torch::nn::Linear make_linear(int64_t in, int64_t out, bool bias) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

void reset_width(at::Tensor& r) {
  torch::nn::init::normal_(r, 0.0, 1.0 / std::sqrt(static_cast<double>(r.size(2))));
}

std::ostream& operator<<(std::ostream& stream, const DBAttentionOptions& options) {
  stream << std::boolalpha << "d=" << options.d() << ", heads=" << options.heads() << ", d_p=" << options.d_p()
         << ", d_in=" << options.d_in() << ", form=" << to_string(options.form())
         << ", normalise=" << to_string(options.normalise()) << ", z_update=" << to_string(options.z_update())
         << ", dropout=" << options.dropout() << ", bias=" << options.bias()
         << ", compress_length=" << options.compress_length() << ", compress_width=" << options.compress_width();
  return options.order() == Order::two_pass ? stream : stream << ", order=" << to_string(options.order());
}

}  // namespace dba
