#pragma once

#include <optional>
#include <string>
#include <vector>

#include "keys.h"

namespace dba::config {

/// A value as somebody wrote it.
struct Value {
  enum class Shape { nothing, scalar, list };
  Shape shape = Shape::nothing;
  std::vector<std::string> items;  ///< one for a scalar
  bool quoted = false;             ///< in quotes: text, whatever it looks like
};

/// Puts the value where the key says, or tells what was expected and what came and leaves the configuration alone.
std::optional<std::string> assign(TrainConfig& config, const Key& key, const Value& value);

/// The type and the range, as in "integer, at least 1".
std::string expectation(const Key& key);

/// The value of a key as YAML: read again it is the same, bit for bit.
std::string written(const TrainConfig& config, const Key& key);

}  // namespace dba::config
