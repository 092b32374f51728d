#pragma once

#include <cstdint>

#include "dba/config/train_config.h"

namespace dba::train {

/// The learning rate of update `update` (from 1) of `total`.
///   warm-up        from warmup_from to lr, linearly, over the first `warmup` updates; then
///   constant       lr
///   inverse_sqrt   lr √(warmup/update); without warm-up lr/√update
///   cosine         from lr to lr·final_ratio along half a cosine, at `total`
///   linear         from lr to lr·final_ratio, at `total`
///   steps          lr·factor^(milestones passed)
double learning_rate(const config::ScheduleConfig& schedule, double lr, std::int64_t update, std::int64_t total);

/// The schedule of a run of `total` updates that is counted in epochs, where nobody can know beforehand how long the
/// warm-up may be: at most a quarter of the run.
config::ScheduleConfig fitted(const config::ScheduleConfig& schedule, std::int64_t total);

}  // namespace dba::train
