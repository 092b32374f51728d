#include "folder_listing.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "bytes/sha256.h"
#include "checksum.h"
#include "dba/bytes/errors.h"
#include "dba/data/byte_source.h"

namespace dba::data {
namespace {

std::uint64_t fingerprint_below(const std::filesystem::path& folder, const std::string& prefix) {
  std::uint64_t sum = 0;
  for (const std::string& name : names_in(folder)) {
    const std::filesystem::path path = folder / name;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0)
      throw bytes::FileError("open", path, errno);
    if (S_ISDIR(status.st_mode)) {
      sum += fingerprint_below(path, prefix + name + "/");
      continue;
    }
    const std::string text = prefix + name + "," + std::to_string(status.st_size) + "," +
                             std::to_string(status.st_mtim.tv_sec) + "," + std::to_string(status.st_mtim.tv_nsec);
    Checksum checksum;
    checksum.add(std::as_bytes(std::span(text)));
    sum += checksum.value();
  }
  return sum;
}

std::string digest_of_file(const std::filesystem::path& file) {
  bytes::Sha256 digest;
  std::vector<char> buffer(std::size_t{256} << 10);
  const auto source = open_source(file);
  while (const std::size_t count = source->read(buffer))
    digest.add(std::as_bytes(std::span(buffer).first(count)));
  return digest.finish();
}

void list_files(const std::filesystem::path& folder, const std::string& prefix, std::vector<std::string>& paths) {
  for (const std::string& name : names_in(folder)) {
    if (is_folder(folder / name))
      list_files(folder / name, prefix + name + "/", paths);
    else
      paths.push_back(prefix + name);
  }
}

}  // namespace

bool is_file(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_folder(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::uint64_t size_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw bytes::FileError("open", path, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

// Through system calls: see atomic_write.cc for why not std::filesystem.
std::vector<std::string> names_in(const std::filesystem::path& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open)
    throw bytes::FileError("open the folder", folder, errno);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = ::readdir(open.get())) {
    if (entry->d_name[0] != '.')
      names.emplace_back(entry->d_name);
    errno = 0;
  }
  if (errno != 0)
    throw bytes::FileError("read the folder", folder, errno);
  std::ranges::sort(names);
  return names;
}

std::string digest_of(const std::filesystem::path& path) {
  if (!is_folder(path))
    return is_file(path) ? digest_of_file(path) : "";
  std::vector<std::string> paths;
  list_files(path, "./", paths);
  std::ranges::sort(paths);
  bytes::Sha256 digest;
  for (const std::string& file : paths) {
    const std::string line = digest_of_file(path / file) + "  " + file + "\n";
    digest.add(std::as_bytes(std::span(line)));
  }
  return digest.finish();
}

std::uint64_t listing_fingerprint(const std::filesystem::path& folder) {
  return fingerprint_below(folder, "");
}

}  // namespace dba::data
