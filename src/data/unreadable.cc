#include "unreadable.h"

#include <sys/stat.h>

#include <cerrno>

namespace dba::data {

std::string with_remedy(const bytes::FileError& error) {
  const std::string what = error.what();
  switch (error.error()) {
    case EACCES:
    case EPERM:
      return what + "; make it and the folders it lies in readable, as with chmod u+rX";
    case EISDIR:
    case ENOTDIR:
      return what + "; a folder stands where a file belongs, or the other way round: unpack or fetch it again";
    case ENOENT:
    case ELOOP:
      return what + "; it is gone, or a link that leads nowhere: unpack or fetch it again";
    default:
      return what + "; fetch it again";
  }
}

std::string unreadable_reason(const std::filesystem::path& folder, const std::filesystem::path& below) {
  std::filesystem::path path = folder;
  for (const std::filesystem::path& name : below) {
    path /= name;
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0)
      continue;
    const int error = errno;
    const bool is_link = ::lstat(path.c_str(), &status) == 0;
    if (!is_link && (error == ENOENT || error == ENOTDIR))
      return "";
    return with_remedy(bytes::FileError("open", path, error));
  }
  return "";
}

}  // namespace dba::data
