#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dba/config/train_config.h"
#include "reproduce/experiment.h"

namespace dba::reproduce {

/// The run with fewer updates, to try the whole chain: warm-up and evaluations come earlier in the same measure, a test
/// set is not watched along the way, and its variant says so, so that it is never taken for the whole one. `config` is
/// what run.config holds.
Run shortened(Run run, std::int64_t updates, const config::TrainConfig& config);

/// What the variant of a shortened run consists of; nothing for that of a whole one.
struct ShortenedVariant {
  std::string of;  ///< the whole run's
  std::int64_t updates = 0;
};
std::optional<ShortenedVariant> parse_shortened(std::string_view variant);

}  // namespace dba::reproduce
