#include "dba/run/checkpoint_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "checkpoint_index.h"
#include "dba/bytes/errors.h"
#include "folders.h"

namespace dba::run {

using bytes::FileError;
using bytes::FormatError;

struct Checkpoint::Content {
  Content(const std::filesystem::path& folder, CheckpointIndex index)
      : path(folder), step(index.step), metadata(std::move(index.metadata)), shards(folder, index.shards) {
    for (BlobPlace& place : index.blobs) {
      by_name.emplace(place.name, blobs.size());
      blobs.push_back({std::move(place.name), shards.bytes().subspan(place.offset, place.size)});
    }
  }

  std::filesystem::path path;
  std::int64_t step;
  std::string metadata;
  MappedShards shards;
  std::vector<Blob> blobs;
  std::map<std::string, std::size_t, std::less<>> by_name;
};

std::int64_t Checkpoint::step() const {
  return content_->step;
}

std::span<const Blob> Checkpoint::blobs() const {
  return content_->blobs;
}

std::span<const std::byte> Checkpoint::blob(std::string_view name) const {
  const auto found = content_->by_name.find(name);
  if (found == content_->by_name.end())
    throw FormatError(content_->path.string() + " holds no " + bytes::in_quotes(name));
  return content_->blobs[found->second].bytes;
}

bool Checkpoint::contains(std::string_view name) const {
  return content_->by_name.contains(name);
}

const std::string& Checkpoint::metadata() const {
  return content_->metadata;
}

const std::filesystem::path& Checkpoint::path() const {
  return content_->path;
}

namespace {

constexpr std::string_view kPrefix = "step-";
// Folders that are not checkpoints yet, and those that are none any more.
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kRemoving = ".removing-";

std::string name_of(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix))
    return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return name == name_of(step) ? std::optional(step) : std::nullopt;
}

void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw FileError("rename " + from.string() + " to", to, errno);
}

// Out of sight at once, so that a crash in the middle leaves no half of a checkpoint under its name.
void discard(const std::filesystem::path& folder, const std::string& name) {
  const auto hidden = folder / (std::string(kRemoving) + name);
  remove_folder(hidden);
  rename_folder(folder / name, hidden);
  remove_folder(hidden);
}

void remove_leftovers(const std::filesystem::path& folder) {
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with(kWriting) || name.starts_with(kRemoving))
      remove_folder(folder / name);
  }
}

void publish(const std::filesystem::path& folder, const std::string& hidden, const std::string& name) {
  if (::renameat2(AT_FDCWD, (folder / hidden).c_str(), AT_FDCWD, (folder / name).c_str(), RENAME_EXCHANGE) == 0)
    remove_folder(folder / hidden);  // the one that was replaced
  else if (errno == ENOENT)
    rename_folder(folder / hidden, folder / name);
  else {
    // A file system that cannot exchange: for a moment the one before is the newest.
    if (is_there(folder / name))
      discard(folder, name);
    rename_folder(folder / hidden, folder / name);
  }
  sync_folder(folder);
}

void write_checkpoint(const std::filesystem::path& folder, std::int64_t step, std::span<const Blob> blobs,
                      std::string_view metadata, std::size_t shard_bytes) {
  constexpr std::size_t kAlignment = 64;
  CheckpointIndex index{step, {}, {}, std::string(metadata)};
  ShardWriter writer(folder, shard_bytes);
  for (const Blob& blob : blobs) {
    if (!blob.bytes.empty())
      writer.align(kAlignment);
    index.blobs.push_back({blob.name, writer.position(), blob.bytes.size()});
    writer.write(blob.bytes);
  }
  index.shards = writer.finish();
  write_index(folder, index);
  sync_folder(folder);
}

bool is_utf8(const std::string& text) {
  using nlohmann::json;
  return json(text).dump(-1, ' ', false, json::error_handler_t::ignore) ==
         json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

void check_arguments(std::int64_t step, std::span<const Blob> blobs, std::string_view metadata) {
  if (step < 0)
    throw std::invalid_argument("CheckpointStore::save: step is " + std::to_string(step) + "; expected 0 or more");
  std::set<std::string_view> names;
  for (const Blob& blob : blobs) {
    if (!names.insert(blob.name).second)
      throw std::invalid_argument("CheckpointStore::save: two blobs are called " + bytes::in_quotes(blob.name));
    if (!is_utf8(blob.name))
      throw std::invalid_argument("CheckpointStore::save: a blob's name is not UTF-8: " + bytes::in_quotes(blob.name));
  }
  if (!nlohmann::json::accept(metadata))
    throw std::invalid_argument("CheckpointStore::save: metadata is not JSON: " + bytes::in_quotes(metadata));
}

}  // namespace

CheckpointStore::CheckpointStore(std::filesystem::path folder, Options options)
    : folder_(std::move(folder)), options_(options) {
  if (options_.keep == 0)
    throw std::invalid_argument("CheckpointStore: keep is 0; expected 1 or more");
  if (options_.shard_bytes == 0 || options_.shard_bytes % kMapUnit != 0) {
    throw std::invalid_argument("CheckpointStore: shard_bytes is " + std::to_string(options_.shard_bytes) +
                                "; expected a multiple of " + std::to_string(kMapUnit));
  }
}

void CheckpointStore::save(std::int64_t step, std::span<const Blob> blobs, std::string_view metadata) {
  check_arguments(step, blobs, metadata);
  make_folders(folder_);
  remove_leftovers(folder_);
  const std::string name = name_of(step);
  const std::string hidden = std::string(kWriting) + name;
  make_folders(folder_ / hidden);
  try {
    write_checkpoint(folder_ / hidden, step, blobs, metadata, options_.shard_bytes);
    publish(folder_, hidden, name);
  } catch (...) {
    try {
      remove_folder(folder_ / hidden);
    } catch (const FileError&) {
      // The next save tries again; the first error is the one to tell.
    }
    throw;
  }
  const auto all = steps();
  const auto self = std::ranges::find(all, step);
  const auto older = static_cast<std::size_t>(self - all.begin());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] > step || i + options_.keep <= older)
      discard(folder_, name_of(all[i]));
  }
}

std::vector<std::int64_t> CheckpointStore::steps() const {
  std::vector<std::int64_t> found;
  for (const std::string& name : names_in(folder_)) {
    if (const auto step = step_of(name))
      found.push_back(*step);
  }
  std::ranges::sort(found);
  return found;
}

Checkpoint CheckpointStore::open(std::int64_t step) const {
  const auto path = folder_ / name_of(step);
  if (!is_there(path))
    throw FileError("open the checkpoint", path, ENOENT);
  CheckpointIndex index = read_index(path);
  if (index.step != step) {
    throw FormatError(path.string() + " holds step " + std::to_string(index.step) + ", not the one of its name");
  }
  return Checkpoint(std::make_shared<const Checkpoint::Content>(path, std::move(index)));
}

std::optional<Checkpoint> CheckpointStore::latest(const std::function<void(const std::string&)>& warn) const {
  const auto all = steps();
  for (std::size_t i = all.size(); i-- > 0;) {
    try {
      return open(all[i]);
    } catch (const std::runtime_error& error) {
      if (!warn)
        continue;
      const std::string next =
          i > 0 ? "the one before, of step " + std::to_string(all[i - 1]) + ", is tried" : "there is none before it";
      warn("The checkpoint of step " + std::to_string(all[i]) + " cannot be used, " + next + ": " + error.what() + ".");
    }
  }
  return std::nullopt;
}

}  // namespace dba::run
