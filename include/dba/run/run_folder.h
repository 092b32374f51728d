#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dba::run {

/// Another process is at work in the folder.
class FolderInUse : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The folder of one run, held for the life of the object: a second process that asks for it is refused. The lock goes
/// with the process, however it ends, so that none is ever left behind.
///
/// The run begins with config.yaml. Where an error comes before it, a folder that was made for the run goes with the
/// object, as do the folders made above it, so that a wrong setting leaves no trace.
///
///   config.yaml    the settings, all of them
///   metrics.jsonl  one JSON object per line, each with a "step"
///   report.json    what came out
///   checkpoints/   see CheckpointStore
///   events/        see EventWriter
///   cache/         the data as training reads them, unless the settings name another place
///   symbols.json   of a fine-tuned run: what it took over from the trained model
///   lock           the process that is at work
class RunFolder {
 public:
  /// A new run. Makes the folder and those above it; refuses (std::invalid_argument) one that holds a run already.
  static RunFolder create(const std::filesystem::path& path);
  /// The folder of a run that goes on. Refuses (std::invalid_argument) one that holds none.
  static RunFolder resume(const std::filesystem::path& path);
  // Both throw FolderInUse, with the other's process id, and FileError for a folder that cannot be written.

  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;
  ~RunFolder();

  const std::filesystem::path& path() const {
    return path_;
  }
  std::filesystem::path checkpoints() const {
    return path_ / "checkpoints";
  }
  std::filesystem::path events() const {
    return path_ / "events";
  }
  std::filesystem::path config() const {
    return path_ / "config.yaml";
  }

  /// Adds a line: the text of a JSON object with an integer member "step" (std::invalid_argument otherwise). It is with
  /// the system when the call returns.
  void append_metrics(std::string_view json_object);
  /// On the disk when the call returns: before a checkpoint, so that no line is missing after a resume.
  void sync_metrics();
  /// For a resume at a checkpoint's step: keeps the lines up to that step. Lines of later steps, and lines that a crash
  /// left unfinished, go. Returns how many.
  std::size_t drop_metrics_after(std::int64_t step);

  /// Whole or not at all.
  void write_config(std::string_view yaml) const;
  /// The same; the text of a JSON value.
  void write_report(std::string_view json) const;

 private:
  RunFolder(std::filesystem::path path, int lock, std::vector<std::filesystem::path> made)
      : path_(std::move(path)), made_(std::move(made)), lock_(lock) {}
  void close_metrics();
  void remove_what_was_made() const;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_;  // path_ and those above it that were not there, the uppermost first
  int lock_ = -1;
  int metrics_ = -1;
};

}  // namespace dba::run
