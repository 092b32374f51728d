#include "plan/constants_file.h"

#include <c10/core/DeviceType.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"

namespace dba::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw bytes::FormatError(path.string() + ": " + what + "; run `dba plan --calibrate` to write it anew, or remove it");
}

double positive_number(const std::filesystem::path& path, const Json& of_engine, const std::string& place,
                       const char* unit) {
  const auto found = of_engine.find(unit);
  if (found == of_engine.end() || !found->is_number()) {
    refuse(path, place + "." + unit + " must be a number of seconds");
  }
  const auto value = found->get<double>();
  if (!std::isfinite(value) || value < 0) {
    refuse(path, place + "." + unit + " must be a number of seconds that is not negative, got " + found->dump());
  }
  return value;
}

Constants constants_of(const std::filesystem::path& path, const std::string& section, const Json& json) {
  Constants constants;
  constants.calibrated = true;
  for (std::size_t engine = 0; engine < kEngines; ++engine) {
    const auto place = "constants." + section + "." + kEngineNames[engine];
    const auto found = json.is_object() ? json.find(kEngineNames[engine]) : json.end();
    if (found == json.end() || !found->is_object()) {
      refuse(path, place + " must be an object of seconds per unit");
    }
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      constants.seconds[engine][unit] = positive_number(path, *found, place, kUnitNames[unit]);
    }
  }
  return constants;
}

std::string type_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace

std::string section_name(at::DeviceType device, at::ScalarType dtype) {
  return c10::DeviceTypeName(device, /*lower_case=*/true) + "/" + type_name(dtype);
}

std::filesystem::path constants_path() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::filesystem::path(value == nullptr ? "" : value);
  };
  if (const auto chosen = variable("DBA_PLAN_FILE"); !chosen.empty()) {
    return chosen;
  }
  const auto cache = variable("XDG_CACHE_HOME");
  return (cache.empty() ? variable("HOME") / ".cache" : cache) / "dba" / "plan.json";
}

ConstantsFile read_constants_file(const std::filesystem::path& path) {
  ConstantsFile file;
  std::ifstream stream(path);
  if (!stream) {
    return file;
  }
  Json json;
  try {
    json = Json::parse(stream);
  } catch (const Json::exception&) {
    refuse(path, "is no JSON");
  }
  if (!json.is_object() || json.value("dba_plan", Json()) != kFormat) {
    refuse(path, "is no calibration of this version (\"dba_plan\": " + std::to_string(kFormat) + ")");
  }
  const auto sections = json.find("constants");
  if (sections == json.end() || !sections->is_object()) {
    refuse(path, "constants must be an object with a section per device and type");
  }
  const auto machine = json.find("machine");
  file.machine = machine != json.end() && machine->is_string() ? machine->get<std::string>() : "";
  for (const auto& [section, content] : sections->items()) {
    file.sections[section] = constants_of(path, section, content);
  }
  return file;
}

void write_constants_file(const std::filesystem::path& path, const ConstantsFile& file) {
  Json sections = Json::object();
  for (const auto& [section, constants] : file.sections) {
    for (std::size_t engine = 0; engine < kEngines; ++engine) {
      for (std::size_t unit = 0; unit < kUnits; ++unit) {
        sections[section][kEngineNames[engine]][kUnitNames[unit]] = constants.seconds[engine][unit];
      }
    }
  }
  const Json json = {{"dba_plan", kFormat}, {"machine", file.machine}, {"constants", sections}};
  const auto text = json.dump(1) + "\n";
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) {
      throw bytes::FileError("make the folder", path.parent_path(), error.value());
    }
  }
  bytes::atomic_write(path, [&](bytes::OutputFile& output) { output.write(std::as_bytes(std::span(text))); });
}

}  // namespace dba::plan
