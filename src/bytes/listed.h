#pragma once

#include <string>

namespace dba::bytes {

/// Names one behind the other, fit for a message: "a, b, c".
template <class Names>
std::string listed(const Names& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace dba::bytes
