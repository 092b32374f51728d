#pragma once

#include <filesystem>
#include <string>

namespace dba::data {

/// Reads a source (see DataPath) as the cache was made, one record in memory at a time: where the first example stands
/// that the cache has with other symbols or another label, or why it cannot be one of the cache. Empty: all are alike.
/// Throws bytes::FileError, and bytes::FormatError for a damaged cache.
std::string first_other_example(const std::filesystem::path& cache, const std::filesystem::path& source);

}  // namespace dba::data
