#pragma once

#include <string>

namespace dba {

/// Which implementation the operators use.
///   automatic  a fused kernel where one exists for the device, dtype and shape, else the reference
///   reference  plain ATen everywhere: the truth that the others are compared with
///   fused      a fused kernel, or an error that says what is missing
enum class Backend { automatic, reference, fused };

/// The choice for the whole process; `automatic` at first, or what the environment variable DBA_BACKEND says.
Backend backend();
void set_backend(Backend backend);

/// "auto", "reference", "fused".
Backend parse_backend(const std::string& name);
std::string to_string(Backend backend);

/// Sets the backend for the length of a scope.
class BackendGuard {
 public:
  explicit BackendGuard(Backend chosen) : previous_(backend()) {
    set_backend(chosen);
  }
  ~BackendGuard() {
    set_backend(previous_);
  }
  BackendGuard(const BackendGuard&) = delete;
  BackendGuard& operator=(const BackendGuard&) = delete;

 private:
  Backend previous_;
};

}  // namespace dba
