#include "dba/bytes/atomic_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "dba/bytes/errors.h"
#include "file_descriptor.h"

namespace dba::bytes {
namespace {

struct FreeMemory {
  void operator()(char* memory) const {
    std::free(memory);
  }
};

// By system calls: the torch wheel's libraries export a partial copy of the functions of std::filesystem, which a
// program linked with them gets instead of its own; in it `remove_all`, for one, jumps to address 0.
std::filesystem::path follow_link(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode))
    return path;
  const std::unique_ptr<char, FreeMemory> target(::realpath(path.c_str(), nullptr));
  if (!target)
    throw FileError("follow the link", path, errno);
  return target.get();
}

// A file of its own beside the target, gone with the object unless it has been renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& folder) {
    static std::atomic<unsigned> count{0};
    do {
      // Short, whatever the length of the target's name; another process of the same number in a shared folder is
      // why an existing file is passed over.
      path_ = folder / (".dba-write-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp");
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0)
      throw FileError("create a file in", folder, errno);
  }
  ~TemporaryFile() {
    if (descriptor_ >= 0)
      ::close(descriptor_);
    if (!renamed_)
      ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  int descriptor() const {
    return descriptor_;
  }

  void rename_over(const std::filesystem::path& target) {
    // Some network file systems report a failed write only here.
    if (::close(std::exchange(descriptor_, -1)) != 0)
      throw FileError("close", target, errno);
    if (::rename(path_.c_str(), target.c_str()) != 0)
      throw FileError("replace", target, errno);
    renamed_ = true;
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

}  // namespace

OutputFile::OutputFile(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      throw FileError("write", path_, written < 0 ? errno : EIO);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void atomic_write(const std::filesystem::path& path, const std::function<void(OutputFile&)>& fill) {
  const auto target = follow_link(path);
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (!exists && errno != ENOENT)
    throw FileError("write", path, errno);
  if (!target.has_filename() || (exists && S_ISDIR(old.st_mode)))
    throw FileError("write", path, EISDIR);
  if (exists && !S_ISREG(old.st_mode))
    throw FileError("replace what is not a regular file,", path, EINVAL);

  const auto folder = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  const FileDescriptor folder_descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_descriptor.valid())
    throw FileError("open the folder of " + target.string() + ",", folder, errno);
  TemporaryFile temporary(folder);
  if (exists && ::fchmod(temporary.descriptor(), old.st_mode & 07777) != 0) {
    throw FileError("keep the permissions of", path, errno);
  }
  OutputFile output(temporary.descriptor(), path);
  fill(output);
  if (::fsync(temporary.descriptor()) != 0)
    throw FileError("flush", path, errno);
  temporary.rename_over(target);
  // EINVAL: a file system that has no such operation for folders.
  if (::fsync(folder_descriptor.get()) != 0 && errno != EINVAL)
    throw FileError("flush the folder", folder, errno);
}

void atomic_write(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts) {
  atomic_write(path, [parts](OutputFile& file) {
    for (const auto part : parts)
      file.write(part);
  });
}

}  // namespace dba::bytes
