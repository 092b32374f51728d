#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/cost.h"

namespace dba::plan {

/// A candidate before the clock.
struct Estimate {
  Candidate candidate;
  std::string obstacle;  ///< why it is out of the question; empty where it may be chosen
  Cost cost;
  double seconds = 0.0;  ///< predicted
};

struct Plan {
  std::vector<Estimate> estimates;  ///< of kCandidates, in their order
  Candidate choice = Candidate::fused;
  std::string reason;  ///< a sentence

  const Estimate& of(Candidate candidate) const {
    return estimates[static_cast<std::size_t>(candidate)];
  }
};

/// All candidates with their costs, and the one that is expected to be fastest.
Plan make_plan(const Shape& shape, const Constants& constants);

/// What Order::automatic means for the shape, by the constants of this machine. Another order than the two passes is
/// taken only where it is expected to save 3 % of the time. It never waits for a device.
Order choose_order(const Shape& shape);

/// The shortest length from which on the chosen candidate is expected to beat softmax attention, with as many tokens in
/// all; nothing where it is not reached by 2^24 tokens.
std::optional<int64_t> crossover_length(const Shape& shape, const Constants& constants);

}  // namespace dba::plan
