#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dba::run {

/// One of the files that a stream of bytes is cut into.
struct Shard {
  std::string file;  ///< name inside the folder
  std::size_t size;
  std::uint32_t checksum;  ///< CRC-32C
};

/// Shards begin at multiples of this, so that any system can map them side by side.
inline constexpr std::size_t kMapUnit = 65'536;

/// Writes a stream into files data-00000, data-00001, … of a folder; each is flushed to the disk when it is full.
class ShardWriter {
 public:
  ShardWriter(std::filesystem::path folder, std::size_t shard_bytes);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  /// Zeros up to the next multiple of `alignment`.
  void align(std::size_t alignment);
  std::size_t position() const {
    return position_;
  }
  /// Flushes the last file and returns all.
  std::vector<Shard> finish();

 private:
  void begin_shard();
  void end_shard();

  std::filesystem::path folder_;
  std::size_t shard_bytes_;
  std::size_t position_ = 0;
  int descriptor_ = -1;
  std::vector<Shard> shards_;
};

/// The stream again, in one piece of address space.
class MappedShards {
 public:
  MappedShards() = default;
  /// All shards but the last must be multiples of kMapUnit. Throws FileError, or FormatError if a file is missing or
  /// its size or checksum is not what the shard says.
  MappedShards(const std::filesystem::path& folder, std::span<const Shard> shards);
  ~MappedShards();
  MappedShards(const MappedShards&) = delete;
  MappedShards& operator=(const MappedShards&) = delete;

  std::span<const std::byte> bytes() const {
    return bytes_;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace dba::run
