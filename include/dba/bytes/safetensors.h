#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dba/bytes/dtype.h"
#include "dba/bytes/mapped_file.h"

/// The safetensors format: 8 bytes, the length of the header, little-endian; the header, a JSON object
/// {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, "__metadata__": {text: text}}; the data,
/// little-endian, rows last index fastest, offsets counted from the end of the header.
namespace dba::bytes {

using Metadata = std::map<std::string, std::string>;

/// A tensor whose bytes belong to somebody else.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< empty: a scalar
  std::span<const std::byte> data;  ///< not necessarily aligned: copy before use as numbers
};

/// Longest header, in bytes, that is read or written; the same as in the Python package.
inline constexpr std::size_t kLongestHeader = 100'000'000;
/// Most dimensions of a tensor that is read or written.
inline constexpr std::size_t kMostDimensions = 64;

/// The bytes of a tensor of this shape. Nothing where a dimension is negative or the size of the tensor without its
/// zero dimensions does not fit a signed 64-bit integer: then strides would overflow even where it has no elements.
std::optional<std::uint64_t> byte_count(DType dtype, std::span<const std::int64_t> shape);

/// A file whose every promise has been checked. Memory for its header grows with the header, never with numbers that
/// the header contains; the data are not copied.
class SafetensorsFile {
 public:
  /// Throws FileError where the file cannot be read, FormatError where it is not sound.
  static SafetensorsFile open(const std::filesystem::path& path);
  /// The same for bytes in memory, which must outlive the result; source is what errors name.
  static SafetensorsFile parse(std::span<const std::byte> bytes, const std::string& source = "memory");

  /// In the order of their data.
  const std::vector<TensorView>& tensors() const {
    return tensors_;
  }
  /// Null where there is none of this name.
  const TensorView* find(std::string_view name) const;
  const Metadata& metadata() const {
    return metadata_;
  }

 private:
  SafetensorsFile() = default;

  MappedFile file_;
  std::vector<TensorView> tensors_;
  std::map<std::string_view, std::size_t> by_name_;
  Metadata metadata_;
};

/// Writes through `atomic_write`. Wide types come first, then names in order, and the header is padded with spaces to
/// a multiple of 8 bytes: all data are aligned, and the same tensors give the same file whatever their order.
/// Throws std::invalid_argument for names that are empty, reserved, used twice or no UTF-8 and for data that do not
/// fit their shape; FileError where the disk refuses.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata = {});

/// What `write_safetensors` would write.
std::vector<std::byte> encode_safetensors(std::span<const TensorView> tensors, const Metadata& metadata = {});

}  // namespace dba::bytes
