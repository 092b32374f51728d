#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dba::run {

/// Named bytes: a tensor, the state of a generator, anything.
struct Blob {
  std::string name;
  std::span<const std::byte> bytes;
};

/// A checkpoint read back. Its files are mapped for the life of the object and its copies; blobs point into them, each
/// in one piece and at an address divisible by 64.
class Checkpoint {
 public:
  std::int64_t step() const;
  /// Blobs in the order in which they were saved.
  std::span<const Blob> blobs() const;
  /// The bytes of a blob. Throws FormatError if there is none of that name.
  std::span<const std::byte> blob(std::string_view name) const;
  bool contains(std::string_view name) const;
  /// What was saved as metadata, as the text of a JSON value.
  const std::string& metadata() const;
  const std::filesystem::path& path() const;

 private:
  friend class CheckpointStore;
  struct Content;
  explicit Checkpoint(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

/// A folder of checkpoints, step-00001234/ each: an index.json and the blobs, cut into files of less than 16 MB, all
/// with checksums. A checkpoint is written into a hidden folder beside, flushed to the disk and renamed: at any moment
/// of a crash it is there whole or not at all. One process writes at a time (`RunFolder` sees to that); any number may
/// read meanwhile.
class CheckpointStore {
 public:
  struct Options {
    /// The newest checkpoints that stay; at least 1.
    std::size_t keep = 2;
    /// Size of the files; a multiple of 65,536, so that they can be mapped side by side.
    std::size_t shard_bytes = 228 * 65'536;
  };

  /// Nothing is created or changed before the first save.
  explicit CheckpointStore(std::filesystem::path folder) : CheckpointStore(std::move(folder), Options()) {}
  CheckpointStore(std::filesystem::path folder, Options options);

  /// Saves a checkpoint, then removes those beyond `keep` and those of later steps, which belong to a future that a
  /// resumed run has left. What an interrupted save left behind is removed too. Saving a step again replaces it.
  /// metadata: the text of a JSON value. Throws FileError (disk full, no permission), with the checkpoints from before
  /// untouched and nothing left behind; std::invalid_argument for a negative step, repeated names or bad JSON.
  void save(std::int64_t step, std::span<const Blob> blobs, std::string_view metadata = "{}");

  /// The steps of the checkpoints that are there, damaged ones included, ascending.
  std::vector<std::int64_t> steps() const;

  /// Reads one and verifies its checksums. Throws FormatError if it is damaged or incomplete, FileError if it is not
  /// there.
  Checkpoint open(std::int64_t step) const;

  /// The newest that is whole. For each newer one that is damaged, `warn` gets a sentence. Nothing if there is none.
  std::optional<Checkpoint> latest(const std::function<void(const std::string&)>& warn) const;

  const std::filesystem::path& folder() const {
    return folder_;
  }

 private:
  std::filesystem::path folder_;
  Options options_;
};

}  // namespace dba::run
