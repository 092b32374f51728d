#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dba::run {

// By system calls: programs linked with torch's libraries get a partial copy of the functions of std::filesystem.
// All throw FileError.

/// Creates the folder and those above it, as far as they are missing. Returns those it made, the uppermost first.
std::vector<std::filesystem::path> make_folders(const std::filesystem::path& folder);
/// The names in a folder, in no order; none for a folder that is not there.
std::vector<std::string> names_in(const std::filesystem::path& folder);
bool is_there(const std::filesystem::path& path);
/// Makes durable what was created, renamed or removed in the folder.
void sync_folder(const std::filesystem::path& folder);
/// Removes a folder and the files in it; it may be gone already. Folders inside it are not expected.
void remove_folder(const std::filesystem::path& folder);

}  // namespace dba::run
