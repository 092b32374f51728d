#include "train/run_log.h"

#include <nlohmann/json.hpp>
#include <vector>

namespace dba::train {

RunLog::RunLog(run::RunFolder& folder, std::int64_t resumed_after)
    : folder_(folder), events_(folder.events(), resumed_after) {}

void RunLog::write(const std::string& part, const Position& position, std::initializer_list<Figure> figures) {
  nlohmann::ordered_json line{{"step", position.update}, {"part", part}, {"epoch", position.epoch}};
  std::vector<run::Scalar> scalars;
  std::vector<std::string> tags;
  tags.reserve(figures.size());  // the scalars look into it
  for (const auto& [name, value] : figures) {
    line[name] = value;
    tags.push_back(part + "/" + name);
    scalars.push_back({tags.back(), static_cast<float>(value)});
  }
  folder_.append_metrics(line.dump());
  events_.write(position.update, scalars);
}

}  // namespace dba::train
