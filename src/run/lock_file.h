#pragma once

#include <filesystem>
#include <string>

namespace dba::run {

/// Opens or creates the file, locks it for this process and writes the process's id into it. The lock belongs to the
/// open file, not to its name or content: closing the descriptor ends it, and so does the end of the process.
/// −1: another process holds it, which `owner` then names ("process 12"). Throws FileError, of ENOENT where the file
/// was removed meanwhile: it would keep nobody out.
int take_lock(const std::filesystem::path& file, std::string& owner);

/// The process that holds the lock, as above, or nothing: for those who only want to know.
std::string lock_owner(const std::filesystem::path& file);

}  // namespace dba::run
