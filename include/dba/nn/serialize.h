#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dba {

/// Tensors by name, and the texts that a safetensors file may carry beside them.
using NamedTensors = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

/// What to do where a file and a module hold the same tensor in different element types.
///   same              an error
///   convert_floating  floating types are converted to the module's, rounding where it is narrower; others an error
enum class DTypeRule { same, convert_floating };

struct TensorFile {
  NamedTensors tensors;  ///< on the CPU, each with storage of its own
  Metadata metadata;
};

struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     ///< in the module, not in the file: left as they were
  std::vector<std::string> unexpected;  ///< in the file, not in the module: passed over
  Metadata metadata;
};

/// The parameters and buffers of a module under the names that `state_dict` has in Python ("layers.0.weight").
/// They share the module's memory.
NamedTensors state_dict(const torch::nn::Module& module);

/// Writes a safetensors file at once or not at all (see dba/bytes/atomic_write.h). Tensors may lie on any device, have
/// any strides and be empty; those that share memory are written once per name. Element types: bool, integers of 8 to
/// 64 bits with and without sign, half, bfloat16, float, double, float8_e4m3fn, float8_e5m2.
void save_tensors(const NamedTensors& tensors, const std::filesystem::path& path, const Metadata& metadata = {});

/// Reads a safetensors file whole. Throws bytes::FormatError for a damaged or hostile one, bytes::FileError for one
/// that cannot be read.
TensorFile load_tensors(const std::filesystem::path& path);

/// Saves `state_dict(module)`.
void save_safetensors(const torch::nn::Module& module, const std::filesystem::path& path,
                      const Metadata& metadata = {});

/// Copies a file into a module's parameters and buffers, in place, on their devices, outside autograd. Shapes must
/// agree, and element types as `dtypes` says. strict: so must the names. All that disagrees is listed in one error,
/// thrown before anything is copied.
LoadReport load_safetensors(torch::nn::Module& module, const std::filesystem::path& path, bool strict = true,
                            DTypeRule dtypes = DTypeRule::same);

}  // namespace dba
