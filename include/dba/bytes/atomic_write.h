#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>

namespace dba::bytes {

/// A file open for writing, unbuffered: hand over large pieces.
class OutputFile {
 public:
  /// Borrows the descriptor; path is what errors name.
  OutputFile(int descriptor, std::filesystem::path path);

  /// All of the bytes, or FileError.
  void write(std::span<const std::byte> bytes);

  int descriptor() const {
    return descriptor_;
  }

 private:
  int descriptor_;
  std::filesystem::path path_;
};

/// Replaces a file at once or not at all. `fill` writes a temporary file beside it, which is flushed to the disk
/// (fsync), renamed over the target and made durable by an fsync of the folder. Whatever fails before the renaming,
/// an exception out of `fill` included, leaves the old file as it was and removes the temporary one.
/// A new file gets the permissions that the umask allows, a replaced one keeps its own; a symbolic link stays and
/// the file it points to is replaced. A target that is a folder or a device is refused.
/// Throws FileError, or what `fill` throws.
void atomic_write(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill);

/// The same with the contents at hand: the parts one after the other.
void atomic_write(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts);

}  // namespace dba::bytes
