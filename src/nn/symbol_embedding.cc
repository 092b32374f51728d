#include "nn/symbol_embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dba {
namespace {

/// Rows of one product: many products side by side fill a GPU that one of a quarter of a million rows would not.
constexpr int64_t kRowsOfAProduct = 4096;
constexpr int64_t kLargestVocabulary = 1024;

/// aᵀ b for each of a stack, with float32 results.
at::Tensor products(const at::Tensor& a, const at::Tensor& b) {
  const auto turned = a.transpose(1, 2);
  return a.is_cuda() ? at::bmm(turned, b, at::kFloat) : at::bmm(turned.to(at::kFloat), b.to(at::kFloat));
}

/// Under autocast what autocast asks for: what follows is a norm, and the rows of a large batch weigh more than the
/// whole model.
at::ScalarType type_of_rows(const at::Tensor& weight) {
  const auto device = weight.device().type();
  const bool narrow = weight.scalar_type() == at::kFloat && at::autocast::is_autocast_enabled(device);
  return narrow ? at::autocast::get_autocast_dtype(device) : weight.scalar_type();
}

class SymbolEmbeddingNode : public torch::autograd::Function<SymbolEmbeddingNode> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& weight,
                            const at::Tensor& symbols) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({symbols});
    ctx->saved_data["vocabulary"] = weight.size(0);
    return at::embedding(weight.to(type_of_rows(weight)), symbols);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    return {
        sums_by_symbol(gradients[0].contiguous(), ctx->get_saved_variables()[0], ctx->saved_data["vocabulary"].toInt()),
        {}};
  }
};

}  // namespace

at::Tensor embed_symbols(const at::Tensor& weight, const at::Tensor& symbols) {
  const auto type = type_of_rows(weight);
  const bool by_product = weight.is_cuda() && weight.scalar_type() == at::kFloat && type == at::kBFloat16 &&
                          weight.size(0) <= kLargestVocabulary && symbols.size(0) >= kRowsOfAProduct;
  return by_product ? SymbolEmbeddingNode::apply(weight, symbols) : at::embedding(weight.to(type), symbols);
}

at::Tensor sums_by_symbol(const at::Tensor& rows, const at::Tensor& symbols, int64_t vocabulary) {
  constexpr int64_t kAlignment = 16;
  const auto width = (vocabulary + kAlignment - 1) / kAlignment * kAlignment;
  const auto n = rows.size(0);
  const auto whole = n / kRowsOfAProduct * kRowsOfAProduct;
  const auto is_symbol = symbols.unsqueeze(1).eq(at::arange(width, symbols.options())).to(at::kBFloat16);
  auto sums = at::zeros({width, rows.size(1)}, rows.options().dtype(at::kFloat));
  if (whole > 0) {
    const auto stack = [whole](const at::Tensor& all) {
      return all.narrow(0, 0, whole).view({-1, kRowsOfAProduct, all.size(1)});
    };
    sums = sums + products(stack(is_symbol), stack(rows)).sum(0);
  }
  if (whole < n) {
    const auto tail = [whole, n](const at::Tensor& all) { return all.narrow(0, whole, n - whole).unsqueeze(0); };
    sums = sums + products(tail(is_symbol), tail(rows)).squeeze(0);
  }
  return sums.narrow(0, 0, vocabulary);
}

}  // namespace dba
