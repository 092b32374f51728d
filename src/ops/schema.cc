#include <torch/library.h>

#include <string>

#include "dba/backend.h"

/// The operators as `torch.ops.dba.*`. Gradients of absent operands are returned undefined.
/// `weights` of core, in this order: query_weight, query_bias, key_weight, key_bias, value_weight, value_bias, width,
/// compress_weight, compress_bias, norm_weight, norm_bias, out_weight, other (dba::ops::CoreWeights).
TORCH_LIBRARY(dba, m) {
  // The switches of dba/backend.h.
  m.def("backend() -> str", [] { return dba::to_string(dba::backend()); });
  m.def("set_backend(str name) -> ()", [](const std::string& name) { dba::set_backend(dba::parse_backend(name)); });
  m.def("cuda_kernels() -> str", [] { return dba::to_string(dba::cuda_kernels()); });
  m.def("set_cuda_kernels(str name) -> ()",
        [](const std::string& name) { dba::set_cuda_kernels(dba::parse_cuda_kernels(name)); });

  m.def(
      "dropout_mask(Tensor rng, float p, int site, Tensor sequence, Tensor first_token, int tokens, int slots, "
      "ScalarType dtype) -> Tensor");

  m.def("fold(Tensor z, Tensor weight, Tensor? bias, int heads, float scale) -> (Tensor rows, Tensor bias)");
  // The bias is (0) where no group and no tail has one. The backward returns dz, then one gradient for each weight,
  // then one for each bias that is present.
  m.def(
      "fold_stack(Tensor z, Tensor[] weights, Tensor?[] biases, Tensor? tail, Tensor? tail_bias, int heads, "
      "float scale) -> (Tensor rows, Tensor bias)");
  m.def(
      "fold_stack_backward(Tensor z, Tensor[] weights, Tensor?[] biases, int heads, float scale, Tensor? drows, "
      "Tensor? dbias) -> Tensor[]");

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
  // The same with what the backward needs: the summary and M.
  m.def(
      "attention_forward(Tensor x, Tensor begin, Tensor end, Tensor? each, Tensor? each_bias, Tensor? shared, "
      "Tensor? shared_bias, int linear_rows, Tensor?[] weights, Tensor restore_rows, Tensor? restore_bias, "
      "Tensor? out_bias, int heads, bool linear, float dropout, Tensor? rng) -> (Tensor y, Tensor compressed, Tensor "
      "c, "
      "Tensor r, Tensor lse, Tensor m)");
  // One gradient for each operand that is present, in the order of the arguments of `attention`: the tokens, the score
  // rows with their biases, restore's rows and bias, the output's bias, then the weights of the core.
  m.def(
      "attention_backward(Tensor x, Tensor begin, Tensor end, Tensor? each, Tensor? each_bias, Tensor? shared, "
      "Tensor? shared_bias, int linear_rows, Tensor?[] weights, Tensor restore_rows, Tensor? restore_bias, "
      "Tensor? out_bias, int heads, bool linear, float dropout, Tensor? rng, Tensor c, Tensor r, Tensor lse, Tensor m, "
      "Tensor dy, Tensor? dcompressed) -> Tensor[]");
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

  // Outputs and operands that a form does without are empty, respectively absent: `sum` is (0, d) unless kept; without
  // a branch this is LayerNorm alone, of type `dtype`.
  m.def(
      "residual_norm(Tensor residual, Tensor? branch, Tensor? branch_bias, Tensor? weight, Tensor? bias, float eps, "
      "float dropout, Tensor? rng, bool keep_sum, ScalarType? dtype) -> (Tensor sum, Tensor y, Tensor mean, "
      "Tensor rstd)");
  // x is the residual beside `branch`, or the sum where that was kept; dbranch is made where `branch_dtype` asks for
  // it.
  m.def(
      "residual_norm_backward(Tensor x, Tensor? branch, Tensor? branch_bias, Tensor? weight, Tensor? bias, Tensor "
      "mean, "
      "Tensor rstd, float dropout, Tensor? rng, Tensor? dsum, Tensor dy, ScalarType? branch_dtype) -> "
      "(Tensor dresidual, Tensor dbranch, Tensor dbranch_bias, Tensor dweight, Tensor dbias)");
  m.def("residual_sum(Tensor residual, Tensor branch, Tensor? branch_bias, float dropout, Tensor? rng) -> Tensor");
  m.def(
      "residual_sum_backward(Tensor dsum, Tensor? branch_bias, float dropout, Tensor? rng, ScalarType branch_dtype) -> "
      "(Tensor dbranch, Tensor dbranch_bias)");

  // kind: gelu or relu.
  m.def("activate(Tensor hidden, Tensor? bias, str kind, float dropout, Tensor? rng) -> Tensor");
  m.def(
      "activate_backward(Tensor hidden, Tensor? bias, str kind, float dropout, Tensor? rng, Tensor dy) -> "
      "(Tensor dhidden, Tensor dbias)");
}
