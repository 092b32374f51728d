#include "dba/run/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/bytes/mapped_file.h"
#include "folders.h"
#include "lock_file.h"

namespace dba::run {
namespace {

using bytes::FileError;
using nlohmann::json;

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kLock = "lock";
constexpr const char* kCache = "cache";
constexpr const char* kSymbols = "symbols.json";

int hold(const std::filesystem::path& folder) {
  std::string owner;
  const int lock = take_lock(folder / kLock, owner);
  if (lock < 0)
    throw FolderInUse("the folder " + folder.string() + " is in use by " + owner +
                      "; wait for its end or choose another folder");
  return lock;
}

std::optional<std::int64_t> step_of(std::string_view line) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object())
    return std::nullopt;
  const auto step = object.find("step");
  if (step == object.end() || !step->is_number_integer())
    return std::nullopt;
  return step->get<std::int64_t>();
}

void write_whole(const std::filesystem::path& path, std::string_view text) {
  const std::array parts = {std::as_bytes(std::span(text))};
  bytes::atomic_write(path, parts);
}

}  // namespace

RunFolder RunFolder::create(const std::filesystem::path& path) {
  // Between two calls the folder may go away with a process that made it and began no run.
  constexpr int kAttempts = 100;
  for (int attempt = 1;; ++attempt) {
    try {
      auto made = make_folders(path);
      RunFolder folder(path, hold(path), std::move(made));
      for (const char* const name : {"config.yaml", kMetrics, "checkpoints", "report.json"}) {
        if (is_there(path / name)) {
          throw std::invalid_argument("the folder " + path.string() + " holds a run already (" + name +
                                      "); resume it with --resume, or choose another folder");
        }
      }
      return folder;
    } catch (const FileError& error) {
      const bool went_away = error.error() == ENOENT || error.error() == EEXIST;
      if (!went_away || attempt == kAttempts)
        throw;
    }
  }
}

RunFolder RunFolder::resume(const std::filesystem::path& path) {
  if (!is_there(path / "config.yaml")) {
    throw std::invalid_argument(
        "the folder " + path.string() +
        " holds no run (no config.yaml); name the folder of a run, or start one without --resume");
  }
  return {path, hold(path), {}};
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::move(other.path_)),
      made_(std::move(other.made_)),
      lock_(std::exchange(other.lock_, -1)),
      metrics_(std::exchange(other.metrics_, -1)) {}

RunFolder::~RunFolder() {
  close_metrics();
  if (lock_ < 0)
    return;
  try {
    remove_what_was_made();
  } catch (const std::exception&) {
    // What cannot be removed stays, and hinders no run.
  }
  ::close(lock_);
}

// With the lock held. What is no preparation of a run, be it a run that began or a stranger's file, keeps all.
void RunFolder::remove_what_was_made() const {
  const auto is_preparation = [](const std::string& name) {
    return name == kLock || name == kCache || name == kSymbols;
  };
  if (made_.empty() || !std::ranges::all_of(names_in(path_), is_preparation))
    return;
  remove_folder(path_ / kCache);
  for (const char* const name : {kSymbols, kLock})
    ::unlink((path_ / name).c_str());
  for (auto folder = made_.rbegin(); folder != made_.rend() && ::rmdir(folder->c_str()) == 0;)
    ++folder;
}

void RunFolder::close_metrics() {
  if (metrics_ >= 0)
    ::close(std::exchange(metrics_, -1));
}

void RunFolder::append_metrics(std::string_view json_object) {
  if (!step_of(json_object)) {
    throw std::invalid_argument("RunFolder::append_metrics: expected a JSON object with an integer \"step\"; got " +
                                bytes::in_quotes(json_object));
  }
  if (json_object.find('\n') != std::string_view::npos)
    throw std::invalid_argument("RunFolder::append_metrics: expected one line; got several");
  const auto path = path_ / kMetrics;
  if (metrics_ < 0) {
    metrics_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (metrics_ < 0)
      throw FileError("open", path, errno);
  }
  const std::string line = std::string(json_object) + "\n";
  bytes::OutputFile(metrics_, path).write(std::as_bytes(std::span(line)));
}

void RunFolder::sync_metrics() {
  if (metrics_ >= 0 && ::fsync(metrics_) != 0)
    throw FileError("flush", path_ / kMetrics, errno);
}

std::size_t RunFolder::drop_metrics_after(std::int64_t step) {
  close_metrics();
  const auto path = path_ / kMetrics;
  if (!is_there(path))
    return 0;
  std::string kept;
  std::size_t dropped = 0;
  {
    const bytes::MappedFile file(path);
    std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    while (!rest.empty()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      const bool finished = end < rest.size();
      rest.remove_prefix(finished ? end + 1 : end);
      const auto line_step = step_of(line);
      if (finished && line_step && *line_step <= step)
        kept += std::string(line) + "\n";
      else
        ++dropped;
    }
  }
  if (dropped > 0)
    write_whole(path, kept);
  return dropped;
}

void RunFolder::write_config(std::string_view yaml) const {
  write_whole(config(), yaml);
}

void RunFolder::write_report(std::string_view json_text) const {
  if (!json::accept(json_text))
    throw std::invalid_argument("RunFolder::write_report: expected JSON; got " + bytes::in_quotes(json_text));
  write_whole(path_ / "report.json", json_text);
}

}  // namespace dba::run
