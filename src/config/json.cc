#include <nlohmann/json.hpp>

#include "dba/config/config_file.h"
#include "keys.h"

namespace dba::config {

std::string to_json(const TrainConfig& config) {
  // Places hand out references to write through; nothing is written here.
  auto& c = const_cast<TrainConfig&>(config);
  nlohmann::ordered_json object;
  for (const Key& key : keys()) {
    auto& section = key.section().empty() ? object : object[std::string(key.section())];
    std::visit([&](const auto& kind) { section[std::string(key.last_name())] = kind.place(c); }, key.kind);
  }
  // Bytes of a path that are no UTF-8 become the replacement character.
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace dba::config
