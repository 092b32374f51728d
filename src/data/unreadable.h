#pragma once

#include <filesystem>
#include <string>

#include "dba/bytes/errors.h"

namespace dba::data {

/// The error's sentence, and what a person can do about it.
std::string with_remedy(const bytes::FileError& error);

/// Why something below `folder` cannot be looked at, though it or a folder on its way may be there: no permission, a
/// link that leads nowhere. Empty: it can be, or it is simply not there.
std::string unreadable_reason(const std::filesystem::path& folder, const std::filesystem::path& below);

}  // namespace dba::data
