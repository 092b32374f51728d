#include <gtest/gtest.h>
#include <torch/torch.h>

#include "dba/backend.h"
#include "dba/ops.h"
#include "ops/arguments.h"
#include "ops/reference/reference.h"
#include "ops/signatures.h"
#include "support/core_inputs.h"
#include "support/kernels_on_gpu.h"
#ifdef DBA_TEST_WITH_CUDA_HEADERS
#include "support/recorded_kernels.h"
#endif

/// The CUDA kernels of `core` against the reference in double. Everything here skips where there is no GPU.
namespace dba::test {
namespace {

constexpr at::DeviceType kDevice = at::kCUDA;

class CoreOnGpu : public KernelsOnGpu {};

struct Shape {
  int64_t batch, heads, d_p, d, e, d_out;
  bool bias;
  double dropout;
};

std::ostream& operator<<(std::ostream& stream, const Shape& s) {
  return stream << "B=" << s.batch << " H=" << s.heads << " d_p=" << s.d_p << " d=" << s.d << " e=" << s.e
                << " d_out=" << s.d_out << (s.bias ? " bias" : "") << " p=" << s.dropout;
}

/// Widths that load as vectors and widths that do not, few and many rows, one slot and many, all batch sizes.
const std::vector<Shape> kShapes = {
    {0, 2, 3, 16, 3, 8, true, 0.25},      {1, 4, 16, 256, 6, 256, true, 0.0},  {2, 1, 1, 16, 5, 6, true, 0.25},
    {7, 2, 3, 18, 3, 10, false, 0.25},    {7, 8, 16, 64, 3, 64, true, 0.1},    {64, 4, 16, 64, 6, 64, true, 0.0},
    {3, 2, 40, 24, 7, 16, true, 0.25},    {2, 2, 64, 128, 12, 40, false, 0.2}, {2, 32, 5, 64, 1, 32, true, 0.0},
    {1, 1, 100, 1024, 24, 64, true, 0.0}, {513, 2, 16, 32, 4, 32, true, 0.25}, {301, 2, 16, 128, 6, 128, true, 0.1}};

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

/// One call of core and of its backward, on the GPU.
struct CoreCase {
  at::Tensor c, r, dm, dcompressed;
  ops::CoreWeights weights;
  ops::Dropout dropout;
  int64_t heads;

  CoreCase(const Shape& s, const CoreKind& kind, at::ScalarType type, uint64_t seed) : heads(s.heads) {
    Random random(seed);
    const auto tensor = [&](at::IntArrayRef sizes, double deviation, at::ScalarType of) {
      return random.normal(sizes, deviation).to(of).to(kDevice);
    };
    const double deviation = 1.0 / std::sqrt(static_cast<double>(s.d));
    const int64_t score_width = kind.released ? s.heads * s.e : s.d;
    const auto matrix = [&](int64_t out) { return tensor({out, s.d}, deviation, type); };
    const auto vector = [&](int64_t size) { return s.bias ? tensor({size}, 0.5, type) : at::Tensor(); };
    const int64_t rows = kind.groups * s.heads * s.d_p;
    c = tensor({s.batch, rows, s.d}, 1.0, at::kFloat);
    r = tensor({s.batch, rows}, 1.0, at::kFloat);
    weights.query_weight = matrix(score_width);
    weights.query_bias = vector(score_width);
    weights.key_weight = matrix(score_width);
    weights.key_bias = vector(score_width);
    weights.value_weight = matrix(s.d);
    weights.value_bias = vector(s.d);
    if (kind.width)
      weights.width = tensor({s.heads, s.d / s.heads, s.e}, 1.0 / std::sqrt(static_cast<double>(s.e)), type);
    if (kind.released) {
      weights.compress_weight = matrix(s.d);
      weights.compress_bias = vector(s.d);
      weights.norm_weight = tensor({s.d}, 1.0, type);
      weights.norm_bias = tensor({s.d}, 0.5, type);
    }
    weights.out_weight = matrix(s.d_out);
    if (kind.cross)
      weights.other = tensor({s.batch, s.d_p, s.d}, 1.0, type);
    dm = tensor({s.batch, s.heads * s.d_p, s.d_out}, 1.0, at::kFloat);
    dcompressed = tensor({s.batch, s.d_p, s.d}, 1.0, at::kFloat);
    dropout = {s.dropout, at::tensor({int64_t{11}, int64_t{5}}, at::kLong).to(kDevice)};
  }

  ops::CoreWeights weights_as(const at::TensorOptions& options) const {
    ops::CoreWeights result;
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        result.*member = (weights.*member).to(options);
    }
    return result;
  }

  /// m, compressed, dc, dr, then the gradients of the weights that are present.
  std::vector<at::Tensor> run() const {
    const auto result = ops::core(c, r, weights, heads, dropout);
    std::vector<at::Tensor> all{result.m, result.c};
    const auto gradients = backward(dm, dcompressed);
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
  std::vector<at::Tensor> backward(const at::Tensor& of_m, const at::Tensor& of_compressed) const {
    const auto op = ops::typed_operator<ops::signature::CoreBackward>("dba::core_backward");
    return op.call(c, r, ops::core_weight_list(weights), heads, dropout.p, ops::optional(dropout.rng),
                   ops::optional(of_m), ops::optional(of_compressed));
  }
  /// The same by the reference, everything in one type, on the CPU.
  std::vector<at::Tensor> reference(at::ScalarType type) const {
    const auto options = at::device(at::kCPU).dtype(type);
    const auto typed = weights_as(options);
    const ops::Dropout mask{dropout.p, dropout.rng.cpu()};
    const auto result = ops::reference::core(c.to(options), r.to(options), typed, heads, mask);
    const auto gradients = ops::reference::core_backward(c.to(options), r.to(options), typed, heads, mask,
                                                         dm.to(options), dcompressed.to(options));
    std::vector<at::Tensor> all{result.m, result.c, gradients.dc, gradients.dr};
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        all.push_back((gradients.weights.*member).to(type));
    }
    return all;
  }
  std::vector<std::string> names() const {
    static const std::vector<std::string> kNames = {
        "query_weight",    "query_bias",    "key_weight",  "key_bias",  "value_weight", "value_bias", "width",
        "compress_weight", "compress_bias", "norm_weight", "norm_bias", "out_weight",   "other"};
    std::vector<std::string> all{"m", "compressed", "dc", "dr"};
    size_t i = 0;
    for (const auto member : ops::core_weight_members()) {
      if ((weights.*member).defined())
        all.push_back(kNames[i]);
      ++i;
    }
    return all;
  }
};

TEST_F(CoreOnGpu, IsTheReferenceInEveryFormShapeAndType) {
  uint64_t seed = 100;
  for (const Shape& shape : kShapes) {
    for (const CoreKind& kind : core_kinds()) {
      for (const at::ScalarType type : kTypes) {
        SCOPED_TRACE(::testing::Message() << kind.name << " " << shape << " " << c10::toString(type));
        const CoreCase given(shape, kind, type, ++seed);
        poison_memory();
        expect_twice_as_close(given.run(), given.reference(type), given.reference(at::kDouble), given.names(), type);
      }
    }
  }
}

/// 16 slots and heads of 64 columns. The number of sequences decides how many of them a thread block has, and whether
/// each of its teams has one.
const std::vector<Shape> kShapesOfOneLaunch = {
    {0, 2, 16, 128, 3, 128, true, 0.0},  {1, 4, 16, 256, 9, 256, true, 0.0},   {2, 1, 16, 64, 3, 64, false, 0.0},
    {7, 4, 16, 256, 9, 48, true, 0.0},   {133, 4, 16, 256, 9, 256, true, 0.0}, {301, 2, 16, 128, 3, 128, true, 0.0},
    {512, 4, 16, 256, 3, 256, true, 0.0}};

/// Sequences drawn on the GPU, whatever their number, and the weights of a CoreCase; every third sequence is empty: its
/// summaries are 0. Like what a layer before it leaves, `other` is float32.
CoreCase drawn_on_gpu(const Shape& shape, const CoreKind& kind, at::ScalarType type, uint64_t seed) {
  Shape one = shape;
  one.batch = 1;
  CoreCase given(one, kind, type, seed);
  torch::manual_seed(seed);
  const auto draw = [&](at::Tensor& tensor) {
    auto sizes = tensor.sizes().vec();
    sizes.front() = shape.batch;
    tensor = at::randn(sizes, at::device(kDevice).dtype(at::kFloat));
  };
  draw(given.c);
  draw(given.r);
  for (auto* tensor : {&given.c, &given.r})
    tensor->slice(0, 1, std::nullopt, 3).zero_();
  if (kind.cross) {
    draw(given.weights.other);
    given.weights.other = given.weights.other.to(type).to(at::kFloat);
  }
  return given;
}

/// The reference is computed on the GPU as well: in double 512 sequences take a CPU seconds.
TEST_F(CoreOnGpu, OneLaunchServesAnyNumberOfSequences) {
  uint64_t seed = 500;
  for (const Shape& shape : kShapesOfOneLaunch) {
    for (const CoreKind& kind : core_kinds()) {
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(::testing::Message() << kind.name << " " << shape << " " << c10::toString(type));
        const CoreCase given = drawn_on_gpu(shape, kind, type, ++seed);
        const auto run = [&] { return ops::core(given.c, given.r, given.weights, given.heads); };
        poison_memory();
        const auto got = run();
        const auto plain = [&](at::ScalarType in) {
          const auto options = at::device(kDevice).dtype(in);
          const auto result = ops::reference::core(given.c.to(options), given.r.to(options), given.weights_as(options),
                                                   given.heads, {});
          return std::vector<at::Tensor>{result.m, result.c};
        };
        expect_twice_as_close({got.m, got.c}, plain(type), plain(at::kDouble), {"m", "compressed"}, type);
#ifdef DBA_TEST_WITH_CUDA_HEADERS
        // GPUs before Hopper have too little shared memory for some of these shapes, and no kernel for form `released`.
        if (compute_capability_major() == 9) {
          const bool step_by_step = kind.released && (kind.cross || shape.heads == 1);
          const auto kernels = kernels_launched(run);
          if (shape.batch == 0) {
            EXPECT_EQ(kernels, 0);
          } else if (step_by_step) {
            EXPECT_GT(kernels, 1);
          } else {
            EXPECT_EQ(kernels, 1);
          }
        }
#endif
      }
    }
  }
}

TEST_F(CoreOnGpu, ThirtyRepetitionsGiveTheSameBits) {
  for (const CoreKind& kind : core_kinds()) {
    for (const at::ScalarType type : kTypes) {
      for (const int64_t head_width : {16, 64}) {
        SCOPED_TRACE(::testing::Message() << kind.name << " " << c10::toString(type) << " " << head_width);
        const CoreCase given({133, 4, 16, 4 * head_width, 6, 4 * head_width, true, 0.25}, kind, type, 7);
        const auto first = given.run();
        for (int repetition = 0; repetition < 30; ++repetition) {
          poison_memory();
          const auto again = given.run();
          for (size_t i = 0; i < first.size(); ++i)
            ASSERT_TRUE(identical(again[i], first[i])) << given.names()[i];
        }
      }
    }
  }
}

TEST_F(CoreOnGpu, AbsentGradientsCountAsZeros) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const CoreCase given({5, 2, 3, 16, 3, 8, true, 0.25}, kind, at::kFloat, 8);
    const auto zeros_m = at::zeros_like(given.dm), zeros_compressed = at::zeros_like(given.dcompressed);
    const auto names = given.names();
    const auto expect_same = [&](const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(identical(got[i], expected[i])) << names[i + 2];
    };
    expect_same(given.backward(given.dm, {}), given.backward(given.dm, zeros_compressed));
    expect_same(given.backward({}, given.dcompressed), given.backward(zeros_m, given.dcompressed));
  }
}

TEST_F(CoreOnGpu, TakesStridedSummariesAndWeightsOfMixedTypes) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    CoreCase given({4, 2, 5, 32, 3, 24, true, 0.25}, kind, at::kBFloat16, 9);
    given.weights.value_weight = given.weights.value_weight.to(at::kFloat);
    given.weights.out_weight = given.weights.out_weight.t().contiguous().t();
    given.c = given.c.transpose(0, 1).contiguous().transpose(0, 1);
    given.r = given.r.t().contiguous().t();
    given.dm = given.dm.transpose(1, 2).contiguous().transpose(1, 2);
    const auto got = given.run();
    expect_twice_as_close(got, given.reference(at::kBFloat16), given.reference(at::kDouble), given.names(),
                          at::kBFloat16);
    size_t i = 4;
    for (const auto member : ops::core_weight_members()) {
      if ((given.weights.*member).defined()) {
        EXPECT_EQ(got[i++].scalar_type(), (given.weights.*member).scalar_type());
      }
    }
  }
}

/// More slots than a block's shared memory holds, and double: the reference serves.
TEST_F(CoreOnGpu, WhatIsBeyondTheKernelsFallsBack) {
  for (const CoreKind& kind : core_kinds()) {
    SCOPED_TRACE(kind.name);
    const CoreCase wide({1, 4, 256, 64, 6, 16, true, 0.25}, kind, at::kFloat, 10);
    expect_twice_as_close(wide.run(), wide.reference(at::kFloat), wide.reference(at::kDouble), wide.names(),
                          at::kFloat);
    CoreCase exact({3, 2, 3, 16, 3, 8, true, 0.25}, kind, at::kDouble, 11);
    for (auto* tensor : {&exact.c, &exact.r, &exact.dm, &exact.dcompressed})
      *tensor = tensor->to(at::kDouble);
    const auto got = exact.run();
    const auto expected = exact.reference(at::kDouble);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(close(got[i].cpu(), expected[i])) << exact.names()[i];
  }
}

/// Through autograd, with the mask that the reference on the same device draws.
TEST_F(CoreOnGpu, IsDifferentiable) {
  const CoreCase given({3, 2, 5, 32, 3, 24, true, 0.25}, core_kinds().front(), at::kFloat, 12);
  const auto gradients = [&] {
    const auto c = given.c.detach().requires_grad_(true);
    const auto weight = given.weights.query_weight.detach().requires_grad_(true);
    ops::CoreWeights weights = given.weights;
    weights.query_weight = weight;
    const auto result = ops::core(c, given.r, weights, given.heads, given.dropout);
    return torch::autograd::grad({(result.m * given.dm).sum() + (result.c * given.dcompressed).sum()}, {c, weight});
  };
  const auto fused = gradients();
  const BackendGuard guard(Backend::reference);
  const auto plain = gradients();
  for (size_t i = 0; i < fused.size(); ++i)
    EXPECT_TRUE(close(fused[i].cpu(), plain[i].cpu(), 1e-5));
}

}  // namespace
}  // namespace dba::test
