#include "dba/nn/softmax_attention.h"

#include <torch/torch.h>

#include "nn/dba_checks.h"
#include "nn/full_map.h"
#include "nn/rows.h"

namespace dba {

SoftmaxAttentionImpl::SoftmaxAttentionImpl(SoftmaxAttentionOptions options_) : options(std::move(options_)) {
  check_options("SoftmaxAttention", DBAttentionOptions(options.d(), options.heads()).dropout(options.dropout()));
  reset();
}

void SoftmaxAttentionImpl::reset() {
  const auto d = options.d();
  w_q = register_module("w_q", make_linear(d, d, options.bias()));
  w_k = register_module("w_k", make_linear(d, d, options.bias()));
  w_v = register_module("w_v", make_linear(d, d, options.bias()));
  w_o = register_module("w_o", make_linear(d, d, options.bias()));
}

void SoftmaxAttentionImpl::reset_parameters() {
  for (auto layer : {w_q, w_k, w_v, w_o}) {
    layer->reset_parameters();
  }
}

void SoftmaxAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::SoftmaxAttention(d=" << options.d() << ", heads=" << options.heads()
         << ", dropout=" << options.dropout() << ", bias=" << std::boolalpha << options.bias() << ")";
}

AttentionOutput SoftmaxAttentionImpl::attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                                             bool need_weights) {
  const auto rows = as_rows("SoftmaxAttention", "x", x, sequences, options.d());
  const auto q = w_q->forward(rows);
  const auto k = w_k->forward(rows);
  const auto v = w_v->forward(rows);
  const auto dropout = is_training() ? options.dropout() : 0.0;
  const auto mixed = w_o->forward(full_map_attention(q, k, v, sequences, options.heads(), dropout));
  AttentionOutput output;
  output.y = clear_rows(mixed, real_rows(sequences)).view(x.sizes());
  output.z = z;
  if (need_weights) {
    output.weights.emplace();
    output.weights->p = full_map_weights(q, k, sequences, options.heads());
  }
  return output;
}

}  // namespace dba
