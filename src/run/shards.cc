#include "shards.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "bytes/file_descriptor.h"
#include "crc32c.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"

namespace dba::run {

using bytes::FileDescriptor;
using bytes::FileError;
using bytes::FormatError;

ShardWriter::ShardWriter(std::filesystem::path folder, std::size_t shard_bytes)
    : folder_(std::move(folder)), shard_bytes_(shard_bytes) {}

ShardWriter::~ShardWriter() {
  if (descriptor_ >= 0)
    ::close(descriptor_);
}

void ShardWriter::begin_shard() {
  char name[32];
  std::snprintf(name, sizeof name, "data-%05zu", shards_.size());
  const auto path = folder_ / name;
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw FileError("create", path, errno);
  shards_.push_back({name, 0, 0});
}

void ShardWriter::end_shard() {
  const auto path = folder_ / shards_.back().file;
  if (::fsync(descriptor_) != 0)
    throw FileError("flush", path, errno);
  if (::close(std::exchange(descriptor_, -1)) != 0)
    throw FileError("close", path, errno);
}

void ShardWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (descriptor_ < 0)
      begin_shard();
    Shard& shard = shards_.back();
    const auto part = bytes.first(std::min(bytes.size(), shard_bytes_ - shard.size));
    bytes::OutputFile(descriptor_, folder_ / shard.file).write(part);
    shard.checksum = crc32c(part, shard.checksum);
    shard.size += part.size();
    position_ += part.size();
    bytes = bytes.subspan(part.size());
    if (shard.size == shard_bytes_)
      end_shard();
  }
}

void ShardWriter::align(std::size_t alignment) {
  static constexpr std::array<std::byte, 64> kZeros{};
  while (position_ % alignment != 0)
    write(std::span(kZeros).first(std::min(kZeros.size(), alignment - position_ % alignment)));
}

std::vector<Shard> ShardWriter::finish() {
  if (descriptor_ >= 0)
    end_shard();
  return std::exchange(shards_, {});
}

namespace {

void map_one(const std::filesystem::path& path, const Shard& shard, std::byte* place) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    if (errno == ENOENT)
      throw FormatError(path.string() + " is missing");
    throw FileError("open", path, errno);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw FileError("look at", path, errno);
  if (!S_ISREG(status.st_mode) || static_cast<std::size_t>(status.st_size) != shard.size) {
    throw FormatError(path.string() + " has " + std::to_string(status.st_size) + " bytes instead of " +
                      std::to_string(shard.size));
  }
  if (::mmap(place, shard.size, PROT_READ, MAP_PRIVATE | MAP_FIXED, file.get(), 0) == MAP_FAILED)
    throw FileError("map", path, errno);
  if (crc32c({place, shard.size}) != shard.checksum)
    throw FormatError(path.string() + " is damaged: its checksum does not agree");
}

}  // namespace

MappedShards::MappedShards(const std::filesystem::path& folder, std::span<const Shard> shards) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].size == 0 || (i + 1 < shards.size() && shards[i].size % kMapUnit != 0))
      throw FormatError((folder / shards[i].file).string() + " has a size that cannot be mapped");
    if (__builtin_add_overflow(total, shards[i].size, &total))
      throw FormatError(folder.string() + " claims more bytes than can be addressed");
  }
  if (total == 0)
    return;
  // Address space first, then one file after the other into it.
  void* const memory = ::mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw FileError("map", folder, errno);
  bytes_ = {static_cast<const std::byte*>(memory), total};
  try {
    std::byte* place = static_cast<std::byte*>(memory);
    for (const Shard& shard : shards) {
      map_one(folder / shard.file, shard, place);
      place += shard.size;
    }
  } catch (...) {
    ::munmap(memory, total);
    throw;
  }
}

MappedShards::~MappedShards() {
  if (!bytes_.empty())
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace dba::run
