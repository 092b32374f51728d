#include "plan/constants.h"

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <mutex>

#include "plan/constants_file.h"

namespace dba::plan {
namespace {

struct Known {
  std::mutex mutex;
  bool read = false;
  ConstantsFile file;
  std::map<std::string, std::unique_ptr<Constants>> constants;
};

Known& known() {
  static Known instance;
  return instance;
}

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

/// Rates in 1e9 a second, calls and sequences in microseconds.
Units seconds_per(double operations, double exponentials, double bytes, double call, double sequence) {
  return {1 / (operations * kGiga), 1 / (exponentials * kGiga), 1 / (bytes * kGiga), call * kMicro, sequence * kMicro};
}

}  // namespace

double Constants::time_of(const Tally& counts) const {
  double sum = 0;
  for (std::size_t engine = 0; engine < kEngines; ++engine) {
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      sum += counts[engine][unit] * seconds[engine][unit];
    }
  }
  return sum;
}

Constants default_constants(at::DeviceType device, at::ScalarType dtype) {
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const double products = dtype == at::kDouble ? 0.5 : 1.0;
  Constants constants;
  if (device == at::kCPU) {
    constants.seconds = {seconds_per(190 * products, 3.0, 60, 12, 0.3),
                         seconds_per(200 * products, 3.0, 60, 55, 0.6),
                         seconds_per(250 * products, 1.5, 60, 12, 0.5),
                         seconds_per(170 * products, 1.5, 40, 35, 1.0),
                         seconds_per((half ? 40 : 155) * products, 0.8, 60, 3, 0.7),
                         seconds_per((half ? 40 : 100) * products, 1.0, 12, 15, 2.0)};
  } else {
    constants.seconds = {seconds_per(half ? 450'000 : 90'000 * products, 20'000, 3'000, 6, 0.001),
                         seconds_per(half ? 350'000 : 70'000 * products, 20'000, 3'000, 8, 0.002),
                         seconds_per(60'000 * products, 4'000, 2'500, 8, 0.002),
                         seconds_per(60'000 * products, 4'000, 2'500, 16, 0.004),
                         seconds_per(half ? 600'000 : 45'000 * products, 4'000, 2'500, 4, 0.001),
                         seconds_per(half ? 500'000 : 40'000 * products, 8'000, 2'500, 8, 0.001)};
  }
  return constants;
}

const Constants& constants_for(at::DeviceType device, at::ScalarType dtype) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  if (!all.read) {
    all.read = true;
    try {
      all.file = read_constants_file(constants_path());
    } catch (const std::exception& error) {
      TORCH_WARN("dba: the planner goes by its default constants: ", error.what());
    }
  }
  const auto name = section_name(device, dtype);
  auto& found = all.constants[name];
  if (!found) {
    const auto measured = all.file.sections.find(name);
    found = std::make_unique<Constants>(measured == all.file.sections.end() ? default_constants(device, dtype)
                                                                            : measured->second);
  }
  return *found;
}

void forget_constants() {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  all.read = false;
  all.file = {};
  all.constants.clear();
}

}  // namespace dba::plan
