#pragma once

#include <filesystem>
#include <string>

namespace dba::data {

/// Why a file is of no format, where that can be told, and what to do: it is packed, it is empty, its bytes are not
/// what its ending promises. Empty: only its name does not tell, or it is no file.
std::string unrecognised_reason(const std::filesystem::path& file);

}  // namespace dba::data
