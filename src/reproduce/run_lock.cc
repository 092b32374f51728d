#include "reproduce/run_lock.h"

#include <unistd.h>

#include <cerrno>

#include "dba/bytes/errors.h"
#include "run/lock_file.h"

namespace dba::reproduce {

std::optional<RunLock> RunLock::take(const std::filesystem::path& file, std::string& owner) {
  // Whoever held it may remove the file between two calls.
  constexpr int kAttempts = 100;
  for (int attempt = 1;; ++attempt) {
    try {
      const int lock = run::take_lock(file, owner);
      return lock < 0 ? std::nullopt : std::optional<RunLock>(RunLock(file, lock));
    } catch (const bytes::FileError& error) {
      if (error.error() != ENOENT || attempt == kAttempts)
        throw;
    }
  }
}

RunLock::~RunLock() {
  if (lock_ < 0)
    return;
  ::unlink(file_.c_str());
  ::close(lock_);
}

}  // namespace dba::reproduce
