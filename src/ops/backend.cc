#include "dba/backend.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>

namespace dba {
namespace {

Backend backend_from_environment() {
  const char* name = std::getenv("DBA_BACKEND");
  return name == nullptr ? Backend::automatic : parse_backend(name);
}

std::atomic<Backend>& chosen_backend() {
  static std::atomic<Backend> chosen{backend_from_environment()};
  return chosen;
}

}  // namespace

Backend backend() {
  return chosen_backend().load();
}

void set_backend(Backend backend) {
  chosen_backend().store(backend);
}

Backend parse_backend(const std::string& name) {
  if (name == "auto") {
    return Backend::automatic;
  }
  if (name == "reference") {
    return Backend::reference;
  }
  if (name == "fused") {
    return Backend::fused;
  }
  TORCH_CHECK(false, "dba::parse_backend: name must be auto, reference or fused, got \"", name, "\"");
}

std::string to_string(Backend backend) {
  switch (backend) {
    case Backend::automatic:
      return "auto";
    case Backend::reference:
      return "reference";
    case Backend::fused:
      return "fused";
  }
  return "?";
}

}  // namespace dba
