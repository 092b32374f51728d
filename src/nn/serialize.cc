#include "dba/nn/serialize.h"

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <cstring>
#include <optional>
#include <sstream>
#include <utility>

#include "dba/bytes/safetensors.h"

namespace dba {
namespace {

struct DTypePair {
  at::ScalarType torch;
  bytes::DType file;
};

constexpr std::array<DTypePair, bytes::kAllDTypes.size()> kDTypes = {{
    {at::kBool, bytes::DType::boolean},
    {at::kByte, bytes::DType::u8},
    {at::kChar, bytes::DType::i8},
    {at::kFloat8_e5m2, bytes::DType::f8_e5m2},
    {at::kFloat8_e4m3fn, bytes::DType::f8_e4m3},
    {at::kShort, bytes::DType::i16},
    {at::kUInt16, bytes::DType::u16},
    {at::kHalf, bytes::DType::f16},
    {at::kBFloat16, bytes::DType::bf16},
    {at::kInt, bytes::DType::i32},
    {at::kUInt32, bytes::DType::u32},
    {at::kFloat, bytes::DType::f32},
    {at::kDouble, bytes::DType::f64},
    {at::kLong, bytes::DType::i64},
    {at::kUInt64, bytes::DType::u64},
}};

std::optional<bytes::DType> to_file(at::ScalarType dtype) {
  for (const auto& pair : kDTypes) {
    if (pair.torch == dtype)
      return pair.file;
  }
  return std::nullopt;
}

// Every type of the file has its own in torch: the table is as long as the enumeration.
at::ScalarType to_torch(bytes::DType dtype) {
  for (const auto& pair : kDTypes) {
    if (pair.file == dtype)
      return pair.torch;
  }
  TORCH_INTERNAL_ASSERT(false, "no torch type for ", bytes::name_of(dtype));
}

// A tensor of its own with the bytes of the file, which need not be aligned there.
at::Tensor to_tensor(const bytes::TensorView& view) {
  const bool boolean = view.dtype == bytes::DType::boolean;
  const auto tensor = at::empty(view.shape, at::TensorOptions(boolean ? at::kByte : to_torch(view.dtype)));
  if (!view.data.empty())
    std::memcpy(tensor.mutable_data_ptr(), view.data.data(), view.data.size());
  // A byte of a file may be 2; a bool in memory must not.
  return boolean ? tensor.ne(0) : tensor;
}

// The message of a disagreement between the file's tensor and the module's, empty where there is none.
std::string disagreement(const bytes::TensorView& source, const at::Tensor& target, DTypeRule rule) {
  std::ostringstream message;
  if (target.sizes() != at::IntArrayRef(source.shape)) {
    message << " has shape " << at::IntArrayRef(source.shape) << " in the file, " << target.sizes()
            << " in the module;";
  }
  const auto dtype = to_torch(source.dtype);
  const bool both_floating = at::isFloatingType(dtype) && at::isFloatingType(target.scalar_type());
  if (dtype != target.scalar_type() && !(rule == DTypeRule::convert_floating && both_floating)) {
    message << " is " << dtype << " in the file, " << target.scalar_type() << " in the module;";
    if (both_floating)
      message << " DTypeRule::convert_floating would convert it;";
  }
  return message.str();
}

}  // namespace

NamedTensors state_dict(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined())
      tensors.emplace(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined())
      tensors.emplace(item.key(), item.value());
  }
  return tensors;
}

void save_tensors(const NamedTensors& tensors, const std::filesystem::path& path, const Metadata& metadata) {
  std::vector<at::Tensor> held;  // keeps copies alive until they are written
  std::vector<bytes::TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK(tensor.defined(), "save_tensors: tensor '", name, "' is undefined");
    TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_meta(), "save_tensors: tensor '", name,
                "' must be dense and have data, got layout ", tensor.layout(), " on ", tensor.device(),
                "; call to_dense() or materialise it first");
    const auto dtype = to_file(tensor.scalar_type());
    TORCH_CHECK(dtype, "save_tensors: tensor '", name, "' is ", tensor.scalar_type(),
                ", which safetensors files cannot hold; convert it first");
    const auto plain = tensor.detach().resolve_neg().to(at::kCPU).contiguous();
    held.push_back(plain);
    views.push_back(
        {name, *dtype, plain.sizes().vec(), {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()}});
  }
  bytes::write_safetensors(path, views, metadata);
}

TensorFile load_tensors(const std::filesystem::path& path) {
  const auto file = bytes::SafetensorsFile::open(path);
  TensorFile result{{}, file.metadata()};
  for (const auto& view : file.tensors())
    result.tensors.emplace(view.name, to_tensor(view));
  return result;
}

void save_safetensors(const torch::nn::Module& module, const std::filesystem::path& path, const Metadata& metadata) {
  save_tensors(state_dict(module), path, metadata);
}

LoadReport load_safetensors(torch::nn::Module& module, const std::filesystem::path& path, bool strict,
                            DTypeRule dtypes) {
  const auto file = bytes::SafetensorsFile::open(path);
  auto targets = state_dict(module);
  LoadReport report;
  report.metadata = file.metadata();
  std::ostringstream problems;
  for (const auto& [name, target] : targets) {
    const auto* const source = file.find(name);
    (source ? report.loaded : report.missing).push_back(name);
    if (!source) {
      if (strict)
        problems << "\n  '" << name << "' is missing in the file";
    } else if (auto message = disagreement(*source, target, dtypes); !message.empty()) {
      message.pop_back();
      problems << "\n  '" << name << "'" << message;
    }
  }
  for (const auto& source : file.tensors()) {
    if (targets.contains(source.name))
      continue;
    report.unexpected.push_back(source.name);
    if (strict)
      problems << "\n  '" << source.name << "' is not in the module";
  }
  const auto list = problems.str();
  TORCH_CHECK(list.empty(), "load_safetensors: ", path.string(), " does not fit the module ", module.name(), ":", list,
              strict ? "\nUse strict = false where missing and further names are meant." : "");

  const torch::NoGradGuard no_grad;
  for (const auto& name : report.loaded)
    targets.at(name).copy_(to_tensor(*file.find(name)));
  return report;
}

}  // namespace dba
