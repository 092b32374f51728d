#pragma once

#include <nlohmann/json.hpp>

#include "dba/train/metrics.h"

namespace dba::train {

inline nlohmann::ordered_json as_json(const Metrics& metrics) {
  return {{"examples", metrics.examples},
          {"accuracy", metrics.accuracy},
          {"macro_f1", metrics.macro_f1},
          {"loss", metrics.loss},
          {"confusion", metrics.confusion}};
}

}  // namespace dba::train
