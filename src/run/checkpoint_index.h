#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shards.h"

namespace dba::run {

/// Where a blob lies in the stream of a checkpoint's shards.
struct BlobPlace {
  std::string name;
  std::size_t offset;
  std::size_t size;
};

/// What index.json holds.
struct CheckpointIndex {
  std::int64_t step = 0;
  std::vector<Shard> shards;
  std::vector<BlobPlace> blobs;
  std::string metadata;  ///< the text of a JSON value
};

/// The file and, in a second one, its checksum: `index.json` and `index.json.crc32c`, both flushed to the disk.
void write_index(const std::filesystem::path& folder, const CheckpointIndex& index);

/// Throws FormatError unless the checksum agrees and every blob lies inside the shards.
CheckpointIndex read_index(const std::filesystem::path& folder);

}  // namespace dba::run
