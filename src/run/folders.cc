#include "folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "bytes/file_descriptor.h"
#include "dba/bytes/errors.h"

namespace dba::run {

using bytes::FileDescriptor;
using bytes::FileError;

std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder) {
  if (folder.empty())
    return {};
  if (::mkdir(folder.c_str(), 0777) == 0)
    return {folder};
  int error = errno;
  std::vector<std::filesystem::path> made;
  if (error == ENOENT && folder.has_parent_path() && folder.native() != "/") {
    made = make_folders(folder.parent_path());
    if (::mkdir(folder.c_str(), 0777) == 0) {
      made.push_back(folder);
      return made;
    }
    error = errno;
  }
  struct stat status {};
  if (error == EEXIST && ::stat(folder.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode))
      return made;
    error = ENOTDIR;
  }
  throw FileError("create the folder", folder, error);
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> handle(::opendir(folder.c_str()), close);
  if (!handle) {
    if (errno == ENOENT)
      return {};
    throw FileError("list the folder", folder, errno);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = ::readdir(handle.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..")
      names.push_back(name);
  }
  if (errno != 0)
    throw FileError("list the folder", folder, errno);
  return names;
}

bool is_there(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0)
    return true;
  if (errno == ENOENT || errno == ENOTDIR)
    return false;
  throw FileError("look at", path, errno);
}

void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor.valid())
    throw FileError("open the folder", folder, errno);
  // EINVAL: a file system that has no such operation for folders.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL)
    throw FileError("flush the folder", folder, errno);
}

void remove_folder(const std::filesystem::path& folder) {
  for (const std::string& name : names_in(folder)) {
    const auto path = folder / name;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      throw FileError("remove", path, errno);
  }
  if (::rmdir(folder.c_str()) != 0 && errno != ENOENT)
    throw FileError("remove", folder, errno);
}

}  // namespace dba::run
