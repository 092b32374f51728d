#include "dba/nn/serialize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "dba/bytes/errors.h"
#include "dba/bytes/safetensors.h"

namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

class Serialize : public testing::Test {
 protected:
  Serialize() {
    std::string name = testing::TempDir() + "dba-serialize-XXXXXX";
    TORCH_CHECK(::mkdtemp(name.data()), "cannot make ", name);
    folder_ = name;
    path_ = folder_ / "file.safetensors";
  }
  ~Serialize() override {
    ::unlink(path_.c_str());
    EXPECT_EQ(::rmdir(folder_.c_str()), 0) << "something was left beside " << path_;
  }

  std::filesystem::path folder_;
  std::filesystem::path path_;
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(std::int64_t width) {
    linear = register_module("linear", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    scale = register_parameter("scale", torch::randn({}));
    absent = register_parameter("absent", at::Tensor(), false);
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale;
  at::Tensor absent;
};
TORCH_MODULE(Block);

struct NetworkImpl : torch::nn::Module {
  explicit NetworkImpl(std::int64_t width = 5) {
    embedding = register_module("embedding", torch::nn::Embedding(7, width));
    layers = register_module("layers", torch::nn::ModuleList(Block(width), Block(width)));
    steps = register_buffer("steps", torch::randint(1000, {3}, at::kLong));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};
  at::Tensor steps;
};
TORCH_MODULE(Network);

// Bit for bit: NaN equals itself, -0 does not equal 0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes())
    return false;
  const auto x = a.detach().cpu().contiguous();
  const auto y = b.detach().cpu().contiguous();
  return x.numel() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Random bits in the given type.
at::Tensor random_bits(at::ScalarType dtype, std::vector<std::int64_t> shape) {
  if (dtype == at::kBool)
    return torch::randint(2, shape, at::kByte).to(at::kBool);
  shape.push_back(static_cast<std::int64_t>(c10::elementSize(dtype)));
  return torch::randint(256, shape, at::kByte).view(dtype).squeeze(-1);
}

constexpr at::ScalarType kSavedTypes[] = {
    at::kBool,   at::kByte, at::kChar,     at::kShort, at::kUInt16, at::kInt,         at::kUInt32,       at::kLong,
    at::kUInt64, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kFloat8_e5m2, at::kFloat8_e4m3fn};

TEST_F(Serialize, StateDictHasTheNamesOfPython) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : dba::state_dict(*Network()))
    names.push_back(name);
  EXPECT_THAT(
      names, ElementsAre("embedding.weight", "layers.0.linear.bias", "layers.0.linear.weight", "layers.0.norm.bias",
                         "layers.0.norm.num_batches_tracked", "layers.0.norm.running_mean", "layers.0.norm.running_var",
                         "layers.0.norm.weight", "layers.0.scale", "layers.1.linear.bias", "layers.1.linear.weight",
                         "layers.1.norm.bias", "layers.1.norm.num_batches_tracked", "layers.1.norm.running_mean",
                         "layers.1.norm.running_var", "layers.1.norm.weight", "layers.1.scale", "steps"));
}

TEST_F(Serialize, ModuleComesBackBitForBit) {
  torch::manual_seed(1);
  Network saved, loaded;
  dba::save_safetensors(*saved, path_, {{"step", "12"}});
  const auto weight_before = loaded->embedding->weight;
  const auto report = dba::load_safetensors(*loaded, path_);
  const auto expected = dba::state_dict(*saved);
  const auto actual = dba::state_dict(*loaded);
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(same_bits(actual.at(name), tensor)) << name;
  EXPECT_EQ(report.loaded.size(), expected.size());
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(report.unexpected.empty());
  EXPECT_EQ(report.metadata.at("step"), "12");
  EXPECT_TRUE(loaded->embedding->weight.is_same(weight_before));
  EXPECT_TRUE(weight_before.is_leaf());
  EXPECT_TRUE(weight_before.requires_grad());
}

TEST_F(Serialize, EveryTypeComesBackBitForBit) {
  torch::manual_seed(2);
  dba::NamedTensors tensors;
  for (const auto dtype : kSavedTypes) {
    tensors[std::string(c10::toString(dtype)) + ".matrix"] = random_bits(dtype, {3, 5});
    tensors[std::string(c10::toString(dtype)) + ".scalar"] = random_bits(dtype, {});
    tensors[std::string(c10::toString(dtype)) + ".empty"] = random_bits(dtype, {2, 0, 3});
  }
  dba::save_tensors(tensors, path_, {{"a", "b"}});
  const auto file = dba::load_tensors(path_);
  EXPECT_EQ(file.metadata, (dba::Metadata{{"a", "b"}}));
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(same_bits(file.tensors.at(name), tensor)) << name;
}

TEST_F(Serialize, StridesAndSharedMemoryDoNotMatter) {
  const auto base = torch::randn({4, 6});
  const auto complex_values = torch::randn({3}, at::kComplexFloat);
  const dba::NamedTensors tensors = {{"base", base},
                                     {"same", base},
                                     {"transposed", base.t()},
                                     {"column", base.select(1, 2)},
                                     {"every_other", base.slice(1, 1, 6, 2)},
                                     {"expanded", base.select(0, 0).expand({3, 6})},
                                     {"negated_view", at::imag(complex_values.conj())}};
  dba::save_tensors(tensors, path_);
  const auto file = dba::load_tensors(path_);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(torch::equal(file.tensors.at(name), tensor)) << name;
    EXPECT_TRUE(file.tensors.at(name).is_contiguous()) << name;
  }
  EXPECT_FALSE(file.tensors.at("same").is_alias_of(file.tensors.at("base")));
}

TEST_F(Serialize, LoadingKeepsTheStridesOfTheModule) {
  torch::nn::Linear saved(3, 4), loaded(3, 4);
  loaded->weight.set_data(torch::zeros({3, 4}).t());
  dba::save_safetensors(*saved, path_);
  dba::load_safetensors(*loaded, path_);
  EXPECT_TRUE(torch::equal(loaded->weight, saved->weight));
  EXPECT_EQ(loaded->weight.stride(0), 1);
}

TEST_F(Serialize, ModuleOnTheGpuComesBack) {
  if (!torch::cuda::is_available())
    GTEST_SKIP() << "no CUDA device";
  Network saved, loaded;
  saved->to(at::kCUDA);
  loaded->to(at::kCUDA);
  dba::save_safetensors(*saved, path_);
  dba::load_safetensors(*loaded, path_);
  for (const auto& [name, tensor] : dba::state_dict(*saved)) {
    EXPECT_TRUE(dba::state_dict(*loaded).at(name).is_cuda()) << name;
    EXPECT_TRUE(same_bits(dba::state_dict(*loaded).at(name), tensor)) << name;
  }
}

TEST_F(Serialize, StrictLoadListsEverythingThatDisagreesAndCopiesNothing) {
  Network network;
  auto tensors = dba::state_dict(*network);
  for (auto& [name, tensor] : tensors)
    tensor = tensor.detach().clone();
  tensors.erase("embedding.weight");
  tensors["layers.0.linear.weight"] = torch::zeros({5, 6});
  tensors["layers.1.scale"] = torch::zeros({}, at::kDouble);
  tensors["steps"] = torch::zeros({3}, at::kInt);
  tensors["layers.0.linear.bias"] = torch::full({5}, 9.0f);
  tensors["stranger"] = torch::zeros({1});
  dba::save_tensors(tensors, path_);
  const auto bias_before = dba::state_dict(*network).at("layers.0.linear.bias").detach().clone();
  EXPECT_THAT(
      [&] { dba::load_safetensors(*network, path_); },
      ThrowsMessage<c10::Error>(AllOf(
          HasSubstr("load_safetensors: " + path_.string()), HasSubstr("'embedding.weight' is missing in the file"),
          HasSubstr("'layers.0.linear.weight' has shape [5, 6] in the file, [5, 5] in the module"),
          HasSubstr("'layers.1.scale' is Double in the file, Float in the module"),
          HasSubstr("'steps' is Int in the file, Long in the module"), HasSubstr("'stranger' is not in the module"),
          Not(HasSubstr("'layers.1.linear.bias'")))));
  EXPECT_TRUE(same_bits(dba::state_dict(*network).at("layers.0.linear.bias"), bias_before));
}

TEST_F(Serialize, LooseLoadTakesWhatFitsAndReportsTheRest) {
  torch::nn::Linear linear(2, 3);
  const auto bias_before = linear->bias.detach().clone();
  dba::save_tensors({{"weight", torch::full({3, 2}, 4.0f)}, {"stranger", torch::zeros({1})}}, path_);
  const auto report = dba::load_safetensors(*linear, path_, false);
  EXPECT_THAT(report.loaded, ElementsAre("weight"));
  EXPECT_THAT(report.missing, ElementsAre("bias"));
  EXPECT_THAT(report.unexpected, ElementsAre("stranger"));
  EXPECT_TRUE(torch::equal(linear->weight, torch::full({3, 2}, 4.0f)));
  EXPECT_TRUE(same_bits(linear->bias, bias_before));
}

TEST_F(Serialize, LooseLoadStillRefusesWrongShapes) {
  torch::nn::Linear linear(2, 3);
  dba::save_tensors({{"weight", torch::zeros({2, 3})}}, path_);
  EXPECT_THAT([&] { dba::load_safetensors(*linear, path_, false); },
              ThrowsMessage<c10::Error>(HasSubstr("'weight' has shape [2, 3] in the file, [3, 2] in the module")));
}

TEST_F(Serialize, FloatingTypesAreConvertedOnlyWhenAsked) {
  torch::nn::Linear linear(2, 3);
  const auto weight = torch::randn({3, 2}, at::kDouble);
  const auto bias = torch::randn({3}).to(at::kBFloat16);
  dba::save_tensors({{"weight", weight}, {"bias", bias}}, path_);
  EXPECT_THAT([&] { dba::load_safetensors(*linear, path_); },
              ThrowsMessage<c10::Error>(HasSubstr("DTypeRule::convert_floating would convert it")));
  dba::load_safetensors(*linear, path_, true, dba::DTypeRule::convert_floating);
  EXPECT_TRUE(same_bits(linear->weight, weight.to(at::kFloat)));
  EXPECT_TRUE(same_bits(linear->bias, bias.to(at::kFloat)));

  dba::save_tensors({{"weight", torch::zeros({3, 2}, at::kInt)}, {"bias", bias}}, path_);
  EXPECT_THAT([&] { dba::load_safetensors(*linear, path_, true, dba::DTypeRule::convert_floating); },
              ThrowsMessage<c10::Error>(
                  AllOf(HasSubstr("'weight' is Int in the file, Float in the module"), Not(HasSubstr("'bias'")))));
}

TEST_F(Serialize, TensorsThatAFileCannotHoldAreNamed) {
  const auto refused = [this](const at::Tensor& tensor, const std::string& reason) {
    EXPECT_THAT(
        [&] {
          dba::save_tensors({{"w", tensor}}, path_);
        },
        ThrowsMessage<c10::Error>(AllOf(HasSubstr("save_tensors: tensor 'w'"), HasSubstr(reason))));
    EXPECT_NE(::access(path_.c_str(), F_OK), 0);
  };
  refused(at::Tensor(), "is undefined");
  refused(torch::zeros({2}, at::kComplexFloat), "is ComplexFloat, which safetensors files cannot hold");
  refused(torch::eye(3).to_sparse(), "must be dense");
  refused(torch::empty({2}, at::TensorOptions(at::kMeta)), "must be dense and have data");
}

TEST_F(Serialize, DamagedAndMissingFilesLeaveTheModuleAlone) {
  torch::nn::Linear linear(2, 3);
  const auto before = linear->weight.detach().clone();
  EXPECT_THROW(dba::load_safetensors(*linear, path_), dba::bytes::FileError);
  dba::save_safetensors(*torch::nn::Linear(2, 3), path_);
  ASSERT_EQ(::truncate(path_.c_str(), 100), 0);
  EXPECT_THROW(dba::load_safetensors(*linear, path_), dba::bytes::FormatError);
  EXPECT_THROW(dba::load_tensors(path_), dba::bytes::FormatError);
  EXPECT_TRUE(same_bits(linear->weight, before));
}

TEST_F(Serialize, BooleansOfAFileBecomeZeroOrOne) {
  const std::vector<std::byte> data = {std::byte{0}, std::byte{1}, std::byte{2}, std::byte{255}};
  const std::vector<dba::bytes::TensorView> tensors = {{"mask", dba::bytes::DType::boolean, {4}, data}};
  dba::bytes::write_safetensors(path_, tensors);
  const auto mask = dba::load_tensors(path_).tensors.at("mask");
  EXPECT_EQ(mask.scalar_type(), at::kBool);
  EXPECT_TRUE(torch::equal(mask.view(at::kByte), torch::tensor({0, 1, 1, 1}, at::kByte)));
}

}  // namespace
