#include <torch/library.h>

/// The operators as `torch.ops.dba.*`. Gradients of absent operands are returned undefined.
/// `weights` of core, in this order: query_weight, query_bias, key_weight, key_bias, value_weight, value_bias, width,
/// compress_weight, compress_bias, norm_weight, norm_bias, out_weight, other (dba::ops::CoreWeights).
TORCH_LIBRARY(dba, m) {
  m.def(
      "dropout_mask(Tensor rng, float p, int site, Tensor sequence, Tensor first_token, int tokens, int slots, "
      "ScalarType dtype) -> Tensor");

  m.def("fold(Tensor z, Tensor weight, Tensor? bias, int heads, float scale) -> (Tensor rows, Tensor bias)");

  m.def(
      "compress(Tensor x, Tensor begin, Tensor end, Tensor? each, Tensor? each_bias, Tensor? shared, "
      "Tensor? shared_bias, int linear, float dropout, Tensor? rng) -> (Tensor c, Tensor r, Tensor lse)");
  m.def(
      "compress_backward(Tensor x, Tensor begin, Tensor end, Tensor? each, Tensor? each_bias, Tensor? shared, "
      "Tensor? shared_bias, int linear, float dropout, Tensor? rng, Tensor c, Tensor r, Tensor lse, Tensor? dc, "
      "Tensor? dr, Tensor? dlse) -> (Tensor dx, Tensor deach, Tensor deach_bias, Tensor dshared, "
      "Tensor dshared_bias)");

  m.def(
      "core(Tensor c, Tensor r, Tensor?[] weights, int heads, float dropout, Tensor? rng) -> (Tensor m, "
      "Tensor compressed)");
  m.def(
      "core_backward(Tensor c, Tensor r, Tensor?[] weights, int heads, float dropout, Tensor? rng, Tensor? dm, "
      "Tensor? dcompressed) -> Tensor[]");

  m.def(
      "restore(Tensor x, Tensor begin, Tensor end, Tensor rows, Tensor? bias, Tensor m, Tensor? out_bias, int heads, "
      "bool linear, float dropout, Tensor? rng) -> Tensor");
  m.def(
      "restore_backward(Tensor x, Tensor begin, Tensor end, Tensor rows, Tensor? bias, Tensor m, Tensor? out_bias, "
      "int heads, bool linear, float dropout, Tensor? rng, Tensor dy) -> (Tensor dx, Tensor drows, Tensor dbias, "
      "Tensor dm, Tensor dout_bias)");

  m.def(
      "attention(Tensor x, Tensor begin, Tensor end, Tensor? each, Tensor? each_bias, Tensor? shared, "
      "Tensor? shared_bias, int linear_rows, Tensor?[] weights, Tensor restore_rows, Tensor? restore_bias, "
      "Tensor? out_bias, int heads, bool linear, float dropout, Tensor? rng) -> (Tensor y, Tensor compressed)");
  // The two passes of the layer's backward: over the tokens for what the core needs, then for the tokens themselves.
  m.def(
      "attention_backward_slots(Tensor x, Tensor begin, Tensor end, Tensor restore_rows, Tensor? restore_bias, "
      "Tensor? out_bias, int heads, bool linear, float dropout, Tensor? rng, Tensor dy) -> (Tensor dm, "
      "Tensor dout_bias)");
  m.def(
      "attention_backward_tokens(Tensor x, Tensor begin, Tensor end, Tensor? each, Tensor? each_bias, Tensor? shared, "
      "Tensor? shared_bias, int linear_rows, Tensor restore_rows, Tensor? restore_bias, Tensor m, int heads, "
      "bool linear, float dropout, Tensor? rng, Tensor c, Tensor r, Tensor lse, Tensor? dc, Tensor? dr, Tensor dy) -> "
      "(Tensor dx, Tensor deach, Tensor deach_bias, Tensor dshared, Tensor dshared_bias, Tensor drestore_rows, "
      "Tensor drestore_bias)");
}
