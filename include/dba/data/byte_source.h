#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace dba::data {

/// Bytes in order, from a file, a pipe or memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills the front of `into` and returns how many bytes came; 0 only at the end. Throws bytes::FileError.
  virtual std::size_t read(std::span<char> into) = 0;
};

/// The path that means standard input.
inline constexpr const char* kStandardInput = "-";

/// A file or pipe, or standard input for "-". Throws bytes::FileError, for a folder too.
std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path);

/// Bytes in memory, which must outlive the source.
std::unique_ptr<ByteSource> memory_source(std::span<const std::byte> bytes);

}  // namespace dba::data
