#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dba/config/train_config.h"

namespace dba::train {

struct WrittenCache {
  std::string key;  ///< "data.train": the key that takes the file
  std::filesystem::path file;
  std::size_t examples = 0;
};

/// Reads the data of a configuration as a run would and leaves them, ready, in a folder: train.cache, and where the
/// configuration has such parts, validation.cache and test.cache. `say` hears of what was done. On a machine without
/// the sources the keys may name these files instead. Throws as a run would.
std::vector<WrittenCache> write_caches(const config::TrainConfig& config, const std::filesystem::path& folder,
                                       const std::function<void(const std::string&)>& say);

}  // namespace dba::train
