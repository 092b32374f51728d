#include "dba/bytes/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "dba/bytes/errors.h"
#include "file_descriptor.h"

namespace dba::bytes {

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid())
    throw FileError("open", path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw FileError("look at", path, errno);
  if (S_ISDIR(status.st_mode))
    throw FileError("read", path, EISDIR);
  if (!S_ISREG(status.st_mode))
    throw FileError("map what is not a regular file,", path, EINVAL);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0)
    return;
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED)
    throw FileError("map", path, errno);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty())
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace dba::bytes
