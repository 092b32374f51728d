#include "dba/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dba::train {

double learning_rate(const config::ScheduleConfig& schedule, double lr, std::int64_t update, std::int64_t total) {
  const auto t = static_cast<double>(update);
  const auto warmup = static_cast<double>(schedule.warmup);
  if (update < schedule.warmup) {
    return schedule.warmup_from + (lr - schedule.warmup_from) * t / warmup;
  }
  if (schedule.name == "inverse_sqrt") {
    return lr * std::sqrt(std::max(warmup, 1.0) / t);
  }
  if (schedule.name == "steps") {
    const auto passed = std::count_if(schedule.milestones.begin(), schedule.milestones.end(),
                                      [update](std::int64_t milestone) { return update >= milestone; });
    return lr * std::pow(schedule.factor, static_cast<double>(passed));
  }
  const auto span = static_cast<double>(total) - warmup;
  const auto share = span > 0 ? std::clamp((t - warmup) / span, 0.0, 1.0) : 1.0;
  const auto last = lr * schedule.final_ratio;
  if (schedule.name == "cosine") {
    return last + (lr - last) * 0.5 * (1.0 + std::cos(std::numbers::pi * share));
  }
  if (schedule.name == "linear") {
    return lr + (last - lr) * share;
  }
  return lr;
}

config::ScheduleConfig fitted(const config::ScheduleConfig& schedule, std::int64_t total) {
  constexpr std::int64_t kPart = 4;
  auto result = schedule;
  result.warmup = std::min(schedule.warmup, std::max<std::int64_t>(total / kPart, 1));
  return result;
}

}  // namespace dba::train
