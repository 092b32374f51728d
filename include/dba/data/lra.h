#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dba/data/describe.h"

namespace dba::data {

/// A part of one of Long-Range Arena's five tasks, looked for below a folder.
struct LraPart {
  std::string task;                  ///< "listops", "text", "retrieval", "image", "pathfinder"
  std::string part;                  ///< "train", "validation", "test"
  std::string path;                  ///< as data.train takes it, a part of a file included; empty: not there
  std::string looked_for;            ///< where it would be, for people
  std::uint64_t published;           ///< examples that the published part has
  std::vector<std::string> layouts;  ///< where it may lie below the folder; the first that is there is taken
  std::string cache;                 ///< of `dba data cache`, which runs take before all layouts; empty: not there
  std::size_t classes = 0;           ///< of the task
  std::string unreadable = {};       ///< why it cannot be told whether it is there; empty: it can

  bool is_there() const {
    return !path.empty() || !cache.empty();
  }
};

/// Goes through the layouts in which the tasks are found: those of the release, of the original archives, and of
/// `dba generate`. Three parts a task, but no validation part of Text, which has none.
std::vector<LraPart> find_lra(const std::filesystem::path& folder);

/// Whether a folder holds more than one of the tasks, one in a folder of its own, or one whose file no other data have:
/// grey records under the names of Image and Pathfinder.
bool holds_lra(const std::filesystem::path& folder);

/// What a part holds, read to the end, and the digest of its file or folder.
struct LraFinding {
  LraPart where;
  FileDescription what;    ///< empty where it is not there
  FileDescription cached;  ///< of its cache, the same

  /// What runs take.
  const FileDescription& taken() const {
    return where.cache.empty() ? what : cached;
  }
};

struct LraReport {
  std::vector<LraFinding> findings;
  std::vector<std::string> remarks;  ///< doubts about labels and classes, about half-made folders and about caches
  std::vector<std::string> notes;    ///< counts other than the published ones, examples without text
  std::vector<std::string> packed;   ///< files that lie there still packed, where a task is missing, and the remedy

  /// Nothing that was found has errors, a task that was found lacks no part, nothing lies there packed, and no remark
  /// was necessary.
  bool sound() const;
  std::string to_text() const;
  /// One JSON object.
  std::string to_json() const;
};

LraReport check_lra(const std::filesystem::path& folder, std::size_t most_errors = 10);

}  // namespace dba::data
