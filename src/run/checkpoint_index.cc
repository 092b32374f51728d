#include "checkpoint_index.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "crc32c.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/bytes/mapped_file.h"

namespace dba::run {
namespace {

using bytes::FileError;
using bytes::FormatError;
using nlohmann::json;

constexpr const char* kIndexFile = "index.json";
constexpr const char* kChecksumFile = "index.json.crc32c";
constexpr int kVersion = 1;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string hexadecimal(std::uint32_t number) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", number);
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  const std::array parts = {bytes_of(text)};
  bytes::atomic_write(path, parts);
}

bytes::MappedFile open_part(const std::filesystem::path& path) {
  try {
    return bytes::MappedFile(path);
  } catch (const FileError& error) {
    if (error.error() == ENOENT)
      throw FormatError(path.string() + " is missing");
    throw;
  }
}

CheckpointIndex from_json(const json& root) {
  if (root.at("version").get<int>() != kVersion)
    throw FormatError("its version is " + root.at("version").dump() + "; this program reads " +
                      std::to_string(kVersion));
  CheckpointIndex index;
  index.step = root.at("step").get<std::int64_t>();
  std::size_t total = 0;
  for (const json& entry : root.at("shards")) {
    const Shard& shard =
        index.shards.emplace_back(Shard{entry.at("file").get<std::string>(), entry.at("size").get<std::size_t>(),
                                        entry.at("crc32c").get<std::uint32_t>()});
    if (shard.file.empty() || shard.file[0] == '.' || shard.file.find('/') != std::string::npos)
      throw FormatError("its shard " + bytes::in_quotes(shard.file) + " is no plain file name");
    if (__builtin_add_overflow(total, shard.size, &total))
      throw FormatError("its shards claim more bytes than can be addressed");
  }
  for (const json& entry : root.at("blobs")) {
    const BlobPlace& blob =
        index.blobs.emplace_back(BlobPlace{entry.at("name").get<std::string>(), entry.at("offset").get<std::size_t>(),
                                           entry.at("size").get<std::size_t>()});
    if (blob.offset > total || blob.size > total - blob.offset)
      throw FormatError("its blob " + bytes::in_quotes(blob.name) + " lies outside the shards");
  }
  index.metadata = root.at("metadata").dump();
  return index;
}

}  // namespace

void write_index(const std::filesystem::path& folder, const CheckpointIndex& index) {
  json root = {{"version", kVersion}, {"step", index.step}, {"metadata", json::parse(index.metadata)}};
  root["shards"] = json::array();
  for (const Shard& shard : index.shards)
    root["shards"].push_back({{"file", shard.file}, {"size", shard.size}, {"crc32c", shard.checksum}});
  root["blobs"] = json::array();
  for (const BlobPlace& blob : index.blobs)
    root["blobs"].push_back({{"name", blob.name}, {"offset", blob.offset}, {"size", blob.size}});
  const std::string text = root.dump(1) + "\n";
  write_text(folder / kIndexFile, text);
  write_text(folder / kChecksumFile, hexadecimal(crc32c(bytes_of(text))) + "\n");
}

CheckpointIndex read_index(const std::filesystem::path& folder) {
  const auto path = folder / kIndexFile;
  const bytes::MappedFile file = open_part(path);
  const bytes::MappedFile checksum_file = open_part(folder / kChecksumFile);
  const auto checksum = checksum_file.bytes();
  const std::string_view stated(reinterpret_cast<const char*>(checksum.data()), checksum.size());
  if (stated != hexadecimal(crc32c(file.bytes())) + "\n")
    throw FormatError(path.string() + " is damaged: its checksum does not agree");
  const auto content = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(content.data()), content.size());
  try {
    return from_json(json::parse(text));
  } catch (const json::exception& error) {
    throw FormatError(path.string() + " is no index of a checkpoint: " + error.what());
  } catch (const FormatError& error) {
    throw FormatError(path.string() + ": " + error.what());
  }
}

}  // namespace dba::run
