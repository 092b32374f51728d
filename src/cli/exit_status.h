#pragma once

namespace dba::cli {

inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

/// Thrown by a subcommand that has done its work and ends with a status of its own: 130 or 143 after a signal,
/// run::kTimeIsOver after the time given.
struct ExitStatus {
  int status;
};

}  // namespace dba::cli
