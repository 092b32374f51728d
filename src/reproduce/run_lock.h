#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace dba::reproduce {

/// Held while a process of `dba reproduce` makes a run, so that no second one writes into its folder and log. The file
/// goes with the lock; one that a killed process left behind keeps nobody out.
class RunLock {
 public:
  /// Nothing where another process holds it, which `owner` then names ("process 12"). Throws FileError.
  static std::optional<RunLock> take(const std::filesystem::path& file, std::string& owner);

  RunLock(RunLock&& other) noexcept : file_(std::move(other.file_)), lock_(std::exchange(other.lock_, -1)) {}
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  RunLock(std::filesystem::path file, int lock) : file_(std::move(file)), lock_(lock) {}

  std::filesystem::path file_;
  int lock_;
};

}  // namespace dba::reproduce
