#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "plan/constants.h"

namespace dba::plan {

/// What `dba plan --calibrate` keeps: constants by device and type.
struct ConstantsFile {
  std::string machine;  ///< a line for people: where they were measured
  std::map<std::string, Constants> sections;
};

/// "cpu/float32"
std::string section_name(at::DeviceType device, at::ScalarType dtype);

/// The environment variable DBA_PLAN_FILE, or dba/plan.json in the user's cache folder (XDG_CACHE_HOME, else ~/.cache).
std::filesystem::path constants_path();

/// Empty where there is no such file. Throws bytes::FormatError with the file's name, what is wrong and what to do.
ConstantsFile read_constants_file(const std::filesystem::path& path);
/// Makes the folder where it is missing and replaces the file at once.
void write_constants_file(const std::filesystem::path& path, const ConstantsFile& file);

}  // namespace dba::plan
