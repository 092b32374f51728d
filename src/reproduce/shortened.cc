#include "reproduce/shortened.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace dba::reproduce {
namespace {

constexpr std::string_view kMark = "updates";

}  // namespace

Run shortened(Run run, std::int64_t updates, const config::TrainConfig& config) {
  const auto& train = config.train;
  const double share =
      train.updates > 0 ? std::min(1.0, static_cast<double>(updates) / static_cast<double>(train.updates)) : 1.0;
  const auto in_measure = [&](std::int64_t value) {
    const auto scaled = std::llround(share * static_cast<double>(value));
    return std::to_string(std::clamp<std::int64_t>(scaled, std::min<std::int64_t>(value, 1), updates));
  };
  // Of so few updates evaluations of a large test set would take most of the time.
  std::erase(run.overrides, kWatchTest);
  for (const auto& [key, value] : {std::pair{"train.updates=", std::to_string(updates)},
                                   {"schedule.warmup=", in_measure(config.schedule.warmup)},
                                   {"train.evaluate_every=", in_measure(train.evaluate_every)},
                                   {"train.log_every=", in_measure(train.log_every)},
                                   {"expect.update=", std::string("0")},
                                   {"expect.accuracy=", std::string("0")}})
    run.overrides.push_back(key + value);
  run.variant += (run.variant.empty() ? "" : "-") + std::string(kMark) + std::to_string(updates);
  return run;
}

std::optional<ShortenedVariant> parse_shortened(std::string_view variant) {
  const auto dash = variant.rfind('-');
  const auto last = variant.substr(dash == std::string_view::npos ? 0 : dash + 1);
  if (!last.starts_with(kMark))
    return std::nullopt;
  const auto digits = last.substr(kMark.size());
  ShortenedVariant parts{std::string(variant.substr(0, dash == std::string_view::npos ? 0 : dash)), 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parts.updates);
  if (error != std::errc() || end != digits.data() + digits.size())
    return std::nullopt;
  return parts;
}

}  // namespace dba::reproduce
