#pragma once

#include <c10/core/Device.h>

#include <string>
#include <utility>
#include <vector>

namespace dba::cli {

/// What a figure depends on beside the code: versions, commit, processor, memory, GPU. Names and values, in the order
/// of a header.
std::vector<std::pair<std::string, std::string>> describe_machine(at::Device device);

}  // namespace dba::cli
