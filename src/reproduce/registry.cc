#include "reproduce/experiment.h"

namespace dba::reproduce {

std::span<const Experiment> experiments() {
  static const std::vector<Experiment> all = {lra(), uea()};
  return all;
}

}  // namespace dba::reproduce
