#include "dba/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bytes/file_descriptor.h"
#include "dba/bytes/errors.h"

namespace dba::data {
namespace {

std::size_t read_some(int descriptor, std::span<char> into, const std::filesystem::path& path) {
  while (true) {
    const ssize_t count = ::read(descriptor, into.data(), into.size());
    if (count >= 0)
      return static_cast<std::size_t>(count);
    if (errno != EINTR)
      throw bytes::FileError("read", path, errno);
  }
}

class StandardInput : public ByteSource {
 public:
  std::size_t read(std::span<char> into) override {
    return read_some(STDIN_FILENO, into, "standard input");
  }
};

class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_.valid())
      throw bytes::FileError("open", path, errno);
    struct stat status {};
    if (::fstat(file_.get(), &status) == 0 && S_ISDIR(status.st_mode))
      throw bytes::FileError("read", path, EISDIR);
  }

  std::size_t read(std::span<char> into) override {
    return read_some(file_.get(), into, path_);
  }

 private:
  std::filesystem::path path_;
  bytes::FileDescriptor file_;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::size_t read(std::span<char> into) override {
    const std::size_t count = std::min(into.size(), rest_.size());
    if (count > 0)
      std::memcpy(into.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::unique_ptr<ByteSource> open_source(const std::filesystem::path& path) {
  if (path == kStandardInput)
    return std::make_unique<StandardInput>();
  return std::make_unique<FileSource>(path);
}

std::unique_ptr<ByteSource> memory_source(std::span<const std::byte> bytes) {
  return std::make_unique<MemorySource>(bytes);
}

}  // namespace dba::data
