#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "dba/bytes/errors.h"

namespace dba::data {

/// "a", "b", … (30 in all)
inline std::string quoted_list(const std::vector<std::string>& names, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, names.size()); ++i)
    text += (i > 0 ? ", " : "") + bytes::in_quotes(names[i]);
  return names.size() > most ? text + ", … (" + std::to_string(names.size()) + " in all)" : text;
}

}  // namespace dba::data
