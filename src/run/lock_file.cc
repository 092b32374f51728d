#include "lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "bytes/file_descriptor.h"
#include "dba/bytes/errors.h"

namespace dba::run {
namespace {

std::string owner_of(int lock) {
  char text[32] = {};
  const ssize_t size = ::pread(lock, text, sizeof text - 1, 0);
  const std::string owner(text, size > 0 ? static_cast<std::size_t>(size) : 0);
  const auto digits = owner.substr(0, owner.find_first_not_of("0123456789"));
  return digits.empty() ? "another process" : "process " + digits;
}

bool is_still_at(const std::filesystem::path& path, int file) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

}  // namespace

int take_lock(const std::filesystem::path& file, std::string& owner) {
  const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock < 0)
    throw bytes::FileError("create", file, errno);
  const auto fail = [&](const char* what, int error) {
    ::close(lock);
    throw bytes::FileError(what, file, error);
  };
  // lock_owner holds it for a moment: who holds it after some milliseconds is its owner.
  constexpr int kAttempts = 5;
  for (int attempt = 1; ::flock(lock, LOCK_EX | LOCK_NB) != 0; ++attempt) {
    if (errno != EWOULDBLOCK)
      fail("lock", errno);
    if (attempt == kAttempts) {
      owner = owner_of(lock);
      ::close(lock);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!is_still_at(file, lock))
    fail("lock", ENOENT);
  const std::string self = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock, 0) != 0 || ::pwrite(lock, self.data(), self.size(), 0) != static_cast<ssize_t>(self.size()))
    fail("write", errno);
  return lock;
}

std::string lock_owner(const std::filesystem::path& file) {
  const bytes::FileDescriptor lock(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return lock.valid() && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK ? owner_of(lock.get())
                                                                                             : "";
}

}  // namespace dba::run
