#include "plan/choose.h"

#include <algorithm>
#include <cstdio>

#include "dba/backend.h"
#include "plan/fused_range.h"

namespace dba::plan {
namespace {

/// The two passes stand unless another order promises this share of their time: predictions are not better than that.
constexpr double kWorthwhile = 0.97;

std::string obstacle_of(const Shape& shape, Candidate candidate) {
  switch (candidate) {
    case Candidate::fused: {
      const auto obstacle = fused_obstacle(shape);
      return obstacle.empty() && backend() == Backend::reference ? "the backend is set to reference" : obstacle;
    }
    case Candidate::projected:
      if (shape.dropout > 0 && shape.training) {
        return "with dropout the masks of compress belong to the order of the two passes";
      }
      if (shape.device == at::kCUDA && shape.form == Form::paper && shape.d < 8 * shape.heads) {
        return "the CUDA kernels take widths from 8 on, and a head has " + std::to_string(shape.d / shape.heads);
      }
      return shape.autocast ? "under autocast the two passes settle the types" : "";
    case Candidate::reference:
      return backend() == Backend::fused ? "the backend is set to fused" : "";
    case Candidate::direct:
      if (shape.autocast) {
        return "under autocast the two passes settle the types";
      }
      return shape.device != at::kCPU && shape.longest < 0
                 ? "the longest sequence is known to the device alone, and asking would wait for it"
                 : "";
  }
  return "";
}

std::string percent(double ratio) {
  char text[16];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * ratio);
  return text;
}

std::string reason_of(const Plan& plan) {
  const auto& chosen = plan.of(plan.choice);
  const Estimate* next = nullptr;
  for (const auto& other : plan.estimates) {
    if (&other != &chosen && other.obstacle.empty() && (next == nullptr || other.seconds < next->seconds)) {
      next = &other;
    }
  }
  auto text = to_string(plan.choice);
  if (next == nullptr) {
    text += ", because nothing else is possible";
  } else if (next->seconds < chosen.seconds) {
    text += ", because " + to_string(next->candidate) + " promises only " +
            percent(1 - next->seconds / chosen.seconds) + " less time, which is within the error of the prediction";
  } else {
    text += ", because it needs about " + percent(chosen.seconds / next->seconds) + " of the time of " +
            to_string(next->candidate) + ", the next best, with " +
            percent(chosen.cost.operations / next->cost.operations) + " of its operations and " +
            percent(chosen.cost.bytes / next->cost.bytes) + " of its memory traffic";
  }
  const auto& fused = plan.of(Candidate::fused);
  if (!fused.obstacle.empty()) {
    text += "; no fused kernel: " + fused.obstacle;
  } else if (plan.choice == Candidate::reference) {
    text += "; a layer takes it where the backend is reference (DBA_BACKEND)";
  }
  return text;
}

/// The shape as the constants see it: those that nobody measured here are of two threads.
Shape counted(Shape shape, const Constants& constants) {
  shape.threads = constants.calibrated ? shape.threads : kDefaultThreads;
  return shape;
}

/// The two passes as the backend gives them.
Candidate two_passes(const Plan& plan) {
  return plan.of(Candidate::fused).obstacle.empty() ? Candidate::fused : Candidate::reference;
}

}  // namespace

Plan make_plan(const Shape& shape, const Constants& constants) {
  Plan plan;
  for (const auto candidate : kCandidates) {
    const auto cost = cost_of(counted(shape, constants), candidate);
    plan.estimates.push_back({candidate, obstacle_of(shape, candidate), cost, constants.time_of(cost.tally)});
  }
  plan.choice = two_passes(plan);
  double least = kWorthwhile * plan.of(plan.choice).seconds;
  for (const auto& other : plan.estimates) {
    if (other.obstacle.empty() && other.seconds < least) {
      least = other.seconds;
      plan.choice = other.candidate;
    }
  }
  plan.reason = reason_of(plan);
  return plan;
}

Order choose_order(const Shape& shape) {
  const auto& constants = constants_for(shape.device, shape.autocast ? at::kBFloat16 : shape.dtype);
  const bool fused = obstacle_of(shape, Candidate::fused).empty();
  const auto as_counted = counted(shape, constants);
  const auto seconds = [&](Candidate candidate) { return constants.time_of(cost_of(as_counted, candidate).tally); };
  auto order = Order::two_pass;
  double least = kWorthwhile * seconds(fused ? Candidate::fused : Candidate::reference);
  for (const auto candidate : {Candidate::projected, Candidate::direct}) {
    if (obstacle_of(shape, candidate).empty()) {
      const double promised = seconds(candidate);
      if (promised < least) {
        least = promised;
        order = order_of(candidate);
      }
    }
  }
  return order;
}

std::optional<int64_t> crossover_length(const Shape& shape, const Constants& constants) {
  constexpr int64_t kLongest = int64_t{1} << 24;
  const auto faster_at = [&](int64_t length) {
    Shape at = shape;
    at.longest = length;
    at.batch = std::max<int64_t>(1, shape.tokens / length);
    at.tokens = at.batch * length;
    const auto plan = make_plan(at, constants);
    return plan.of(plan.choice).seconds < constants.time_of(softmax_cost(at).tally);
  };
  int64_t slower = kLongest;  // the longest power of two at which softmax attention wins
  while (slower >= 1 && faster_at(slower)) {
    slower /= 2;
  }
  if (slower == kLongest) {
    return std::nullopt;
  }
  int64_t faster = std::max<int64_t>(1, 2 * slower);
  while (faster - slower > 1) {
    const auto middle = slower + (faster - slower) / 2;
    (faster_at(middle) ? faster : slower) = middle;
  }
  return faster;
}

}  // namespace dba::plan
