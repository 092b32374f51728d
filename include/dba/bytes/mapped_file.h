#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace dba::bytes {

/// A regular file, mapped read-only for the life of the object. Nothing is read before it is touched.
/// Whoever shortens the file in place meanwhile takes the mapped pages away (SIGBUS): replace files by renaming, as
/// `atomic_write` does.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws FileError for a missing file, a folder, a pipe or a device. An empty file has no bytes.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const {
    return bytes_;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace dba::bytes
