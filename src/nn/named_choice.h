#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <string>

/// The values of an enumeration and the names that configurations know them by.
namespace dba {

template <class Choice>
struct NamedChoice {
  const char* name;
  Choice choice;
};

template <class Choice, std::size_t count>
Choice parse_choice(const char* function, const std::string& name, const NamedChoice<Choice> (&choices)[count]) {
  std::string known;
  for (const auto& candidate : choices) {
    if (name == candidate.name) {
      return candidate.choice;
    }
    known += known.empty() ? "" : ", ";
    known += candidate.name;
  }
  TORCH_CHECK(false, "dba::", function, ": name must be one of ", known, ", got \"", name, "\"");
}

template <class Choice, std::size_t count>
std::string name_of(Choice choice, const NamedChoice<Choice> (&choices)[count]) {
  for (const auto& candidate : choices) {
    if (choice == candidate.choice) {
      return candidate.name;
    }
  }
  return "unknown";
}

}  // namespace dba
