#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/backend.h"
#include "dba/ops.h"
#include "support/kernels_on_gpu.h"

/// The CUDA kernels of `fold` against the reference in double. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

class FoldOnGpu : public KernelsOnGpu {};

/// Slots of a layer: shared by all sequences or one set each, one projection or several, biases, rows behind them.
struct FoldCase {
  std::string name;
  bool each;
  int64_t groups;
  bool bias, tail, tail_bias;
};

const std::vector<FoldCase> kFoldCases = {
    {"one", false, 1, false, false, false},         {"one_each_with_bias", true, 1, true, false, false},
    {"two_with_tail", false, 2, false, true, true}, {"two_with_tail_without_bias", false, 2, false, true, false},
    {"two_each", true, 2, false, false, false},     {"two_with_biases", false, 2, true, true, true},
    {"three", false, 3, false, false, false},       {"four_each", true, 4, true, false, false}};

struct FoldShape {
  int64_t batch, heads, d_p, width, d;
};

const std::vector<FoldShape> kFoldShapes = {{1, 1, 1, 5, 7},    {3, 4, 16, 64, 256}, {7, 2, 3, 6, 18},
                                            {64, 8, 16, 8, 64}, {2, 3, 40, 20, 24},  {2, 2, 9, 16, 264}};

/// rows, their bias where there is one, then the gradients of all operands.
std::vector<at::Tensor> run_fold(const FoldCase& kind, const FoldShape& s, at::ScalarType drawn, at::ScalarType type,
                                 at::Device device) {
  Random random(31);
  const auto leaf = [&](at::IntArrayRef sizes, double deviation) {
    return random.normal(sizes, deviation).to(drawn).to(device, type).requires_grad_(true);
  };
  std::vector<at::Tensor> operands;
  const int64_t width = s.heads * s.width;
  const auto keep = [&](const at::Tensor& tensor) {
    operands.push_back(tensor);
    return tensor;
  };
  const auto z = keep(kind.each ? leaf({s.batch, s.d_p, width}, 1.0) : leaf({s.d_p, width}, 1.0));
  std::vector<at::Tensor> weights, biases;
  for (int64_t i = 0; i < kind.groups; ++i) {
    weights.push_back(keep(leaf({width, s.d}, 0.3)));
    biases.push_back(kind.bias && i != 1 ? keep(leaf({width}, 0.5)) : at::Tensor());
  }
  const auto tail = kind.tail ? keep(leaf({s.heads * s.d_p, s.d}, 1.0)) : at::Tensor();
  const auto tail_bias = kind.tail_bias ? keep(leaf({s.heads * s.d_p}, 1.0)) : at::Tensor();
  const auto [rows, bias] = ops::fold_stack(z, weights, biases, tail, tail_bias, s.heads, 0.7);
  EXPECT_EQ(rows.scalar_type(), type);
  EXPECT_EQ(bias.defined(), kind.bias || kind.tail_bias);
  const auto direction = [&](const at::Tensor& of) { return random.normal(of.sizes()).to(drawn).to(device, type); };
  auto loss = (rows * direction(rows)).sum();
  std::vector<at::Tensor> all{rows.detach()};
  if (bias.defined()) {
    loss = loss + (bias * direction(bias)).sum();
    all.push_back(bias.detach());
  }
  const auto gradients = torch::autograd::grad({loss}, operands);
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

TEST_F(FoldOnGpu, IsTheReferenceInEveryShapeAndType) {
  for (const FoldCase& kind : kFoldCases) {
    for (const FoldShape& shape : kFoldShapes) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(::testing::Message() << kind.name << " d=" << shape.d << " " << c10::toString(type));
        poison_memory();
        const auto got = run_fold(kind, shape, type, type, at::kCUDA);
        const auto [exact, plain] = [&] {
          const BackendGuard guard(Backend::reference);
          return std::pair(run_fold(kind, shape, type, at::kDouble, at::kCPU),
                           run_fold(kind, shape, type, type, at::kCUDA));
        }();
        std::vector<std::string> names;
        for (size_t i = 0; i < got.size(); ++i)
          names.push_back("result_" + std::to_string(i));
        expect_twice_as_close(got, plain, exact, names);
        const auto again = run_fold(kind, shape, type, type, at::kCUDA);
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(identical(again[i], got[i])) << i;
      }
    }
  }
}

TEST_F(FoldOnGpu, TakesSizesOfZero) {
  // Slots of no sequence, no slots, heads without width, rows without width.
  const std::vector<FoldShape> shapes = {{0, 2, 3, 4, 5}, {2, 2, 0, 4, 5}, {2, 2, 3, 0, 5}, {2, 2, 3, 4, 0}};
  for (const FoldCase& kind : kFoldCases) {
    for (const FoldShape& s : shapes) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << kind.name << " B=" << s.batch << " d_p=" << s.d_p << " width=" << s.width
                                          << " d=" << s.d << " " << c10::toString(type));
        poison_memory();
        const auto got = run_fold(kind, s, type, type, at::kCUDA);
        const BackendGuard guard(Backend::reference);
        const auto expected = run_fold(kind, s, type, type, at::kCPU);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(close(got[i].cpu(), expected[i], 4 * rounding_of(type))) << i;
      }
    }
  }
}

}  // namespace
}  // namespace dba::test
