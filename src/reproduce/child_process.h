#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dba::reproduce {

/// A program that runs beside this one. In a process group of its own, so that Ctrl-C at the terminal reaches it only
/// through `signal`; if this program dies, it is asked to stop (SIGTERM).
class ChildProcess {
 public:
  /// Starts `arguments` (the first one is the program); standard output and error are added to `log`, standard input
  /// is empty. Throws FileError.
  ChildProcess(const std::vector<std::string>& arguments,
               const std::vector<std::pair<std::string, std::string>>& environment, const std::filesystem::path& log);
  ChildProcess(ChildProcess&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  /// Waits for its end.
  ~ChildProcess();

  void signal(int number) const;
  /// The exit status if it has ended (128 + n after signal n), at once.
  std::optional<int> poll();

 private:
  pid_t id_ = -1;
};

}  // namespace dba::reproduce
