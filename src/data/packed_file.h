#pragma once

#include <filesystem>
#include <string>

namespace dba::data {

/// What is to be done with a file that is still packed ("is packed; unpack it first: tar xf x.tar.xz"), and whether it
/// was fetched to its end, where its bytes tell; empty: it is not packed.
std::string packed_fault(const std::filesystem::path& file);

}  // namespace dba::data
