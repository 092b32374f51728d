#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dba::run {

struct Scalar {
  std::string_view tag;  ///< "train/loss"; UTF-8
  float value;
};

/// Curves for TensorBoard: an event file that only grows and is with the system after every call.
/// Every writer begins a file of its own, whose name sorts behind those already in the folder.
class EventWriter {
 public:
  /// Makes the folder if need be. `resumed_after`: the step of the checkpoint from which a run goes on; curves that an
  /// earlier file carried beyond it are dropped by whoever reads the folder. -1: a new run.
  explicit EventWriter(const std::filesystem::path& folder, std::int64_t resumed_after = -1);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// One point on each of the curves. Throws FileError.
  void write(std::int64_t step, std::span<const Scalar> scalars);
  /// The same with the time of measurement, in seconds since 1970.
  void write(std::int64_t step, std::span<const Scalar> scalars, double wall_time);

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  void append(const std::string& event);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace dba::run
