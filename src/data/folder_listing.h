#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dba::data {

bool is_file(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
/// Of a file, in bytes. Throws bytes::FileError.
std::uint64_t size_of(const std::filesystem::path& path);

/// The names in a folder, sorted by bytes, hidden ones left out. Throws bytes::FileError.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// Of a file, what `sha256sum` prints; of a folder, the digest of such lines, "DIGEST  ./PATH", for all files below it,
/// sorted by path; empty for anything else. Throws bytes::FileError.
std::string digest_of(const std::filesystem::path& path);

/// A number that changes when a file below the folder comes, goes, or has another size or time of change. Throws
/// bytes::FileError.
std::uint64_t listing_fingerprint(const std::filesystem::path& folder);

}  // namespace dba::data
