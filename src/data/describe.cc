#include "dba/data/describe.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "channel_remarks.h"
#include "constant_channels.h"
#include "dba/bytes/errors.h"
#include "dba/data/byte_source.h"
#include "dba/data/cache.h"
#include "dba/data/data_path.h"
#include "dba/data/formats.h"
#include "dba/data/json_text.h"
#include "dba/data/lra.h"
#include "dba/data/tokeniser.h"
#include "folder_listing.h"
#include "label_remarks.h"
#include "unreadable.h"
#include "unrecognised.h"

namespace dba::data {
namespace {

class LengthCounter {
 public:
  explicit LengthCounter(std::string unit) : unit_(std::move(unit)) {}

  void add(std::uint64_t length) {
    shortest_ = std::min(shortest_, length);
    longest_ = std::max(longest_, length);
    total_ += length;
    ++count_;
  }
  void summarise(std::vector<LengthSummary>& into) const {
    if (count_ > 0)
      into.push_back({unit_, shortest_, longest_, static_cast<double>(total_) / static_cast<double>(count_)});
  }

 private:
  std::string unit_;
  std::uint64_t shortest_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t longest_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t count_ = 0;
};

std::uint64_t count_words(std::string_view text) {
  std::uint64_t count = 0;
  while (!next_word(text).empty())
    ++count;
  return count;
}

// By a word of the file's name: "basic_train.tsv", "Val.csv", "test-2.jsonl".
std::string part_of(const std::filesystem::path& file) {
  std::string word;
  std::string part;
  for (const char c : file.stem().string() + " ") {
    if (std::isalpha(static_cast<unsigned char>(c))) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (word == "train" || word == "training")
      part = "train";
    else if (word == "val" || word == "valid" || word == "validation" || word == "dev")
      part = "validation";
    else if (word == "test")
      part = "test";
    word.clear();
  }
  return part;
}

void describe_cache(const std::filesystem::path& path, FileDescription& result) {
  result.format = "cache";
  try {
    const CachedSet set = open_cache(path);
    result.content = name_of(set.kind());
    result.records = set.size();
    result.digest = set.digest();
    result.unlabelled = set.statistics().unlabelled;
    result.empty = set.statistics().empty;
    result.channels = set.encoding().channels;
    const auto counts = set.class_counts();
    for (std::size_t i = 0; i < counts.size(); ++i)
      if (counts[i] > 0)
        result.classes[set.encoding().labels.name(i)] = static_cast<std::uint64_t>(counts[i]);
    LengthCounter lengths(set.kind() == Kind::series ? "steps" : "symbols");
    for (const std::int64_t length : set.lengths())
      lengths.add(static_cast<std::uint64_t>(length));
    lengths.summarise(result.lengths);
    result.repairs = set.statistics().repairs;
    result.constant_channels = set.channel_statistics().constant();
  } catch (const bytes::FormatError& error) {
    result.error_count = 1;
    result.errors.push_back(error.what());
  }
}

void describe_into(FileDescription& result, ReaderOptions options, std::size_t most_errors) {
  const std::filesystem::path& file = result.file;
  const std::filesystem::path path = DataPath::parse(file).path;
  if (is_cache(path)) {
    describe_cache(path, result);
    return;
  }
  if (options.format.empty()) {
    const Format* const format = recognise(path);
    if (!format) {
      result.reason = unrecognised_reason(path);
      return;
    }
    options.format = format->name;
  }
  result.format = options.format;
  if (options.labels == LabelUse::required)
    options.labels = LabelUse::optional;

  LengthCounter text("bytes");
  LengthCounter words("words");
  LengthCounter integers("integers");
  LengthCounter steps("steps");
  ConstantChannels constant;
  const auto note = [&](const std::string& error) {
    if (result.error_count++ < most_errors)
      result.errors.push_back(error);
  };
  try {
    const auto reader = make_reader(file, options);
    result.listed_classes = reader->listed_classes();
    Example example;
    bool more = true;
    while (more) {
      try {
        more = reader->next(example);
        if (!more)
          break;
      } catch (const bytes::FormatError& error) {
        note(error.what());
        continue;
      }
      result.content = name_of(example.content);
      if (example.label)
        ++result.classes[*example.label];
      else
        ++result.unlabelled;
      if (example.content == Content::series) {
        result.channels = example.channels;
        constant.add(example.values, example.channels);
        steps.add(example.values.size() / example.channels);
      } else if (example.content == Content::integers) {
        integers.add(example.integers.size());
      } else {
        if (example.text.empty() || (example.content == Content::pair && example.second.empty())) {
          if (result.empty++ == 0)
            result.first_empty = reader->place();
        }
        if (!is_utf8(example.text) || !is_utf8(example.second)) {
          if (result.not_utf8++ == 0)
            result.first_not_utf8 = reader->place();
        }
        text.add(example.text.size() + example.second.size());
        words.add(count_words(example.text) + count_words(example.second));
      }
    }
    result.doubt = reader->doubt();
    result.doubt_of_end = reader->doubt_of_end();
    result.records = reader->count();
    result.repairs = reader->repairs();
    result.constant_channels = constant.numbers();
  } catch (const bytes::FormatError& error) {
    note(error.what());
  } catch (const bytes::FileError& error) {
    note(with_remedy(error));
  }
  for (const LengthCounter* const counter : {&text, &words, &integers, &steps})
    counter->summarise(result.lengths);
  try {
    result.sha256 = digest_of(path);
  } catch (const bytes::FileError& error) {
    if (result.error_count == 0)
      note(with_remedy(error));
  }
}

FileDescription describe_file(const std::filesystem::path& file, const ReaderOptions& options,
                              std::size_t most_errors) {
  FileDescription result;
  result.file = file;
  result.part = part_of(file);
  try {
    describe_into(result, options, most_errors);
  } catch (const bytes::FileError& error) {
    ++result.error_count;
    result.errors.push_back(with_remedy(error));
  }
  return result;
}

// Whether there is more to say of a file than its name; one that cannot be opened is to be told as such.
bool is_known(const std::filesystem::path& file) {
  try {
    return recognise(file) || is_cache(file);
  } catch (const bytes::FileError&) {
    return true;
  }
}

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names_in(folder)) {
    if (is_file(folder / name))
      files.push_back(folder / name);
  }
  return files;
}

void remark_on_doubts(Description& description) {
  for (const FileDescription& file : description.files) {
    for (const std::string& doubt : {file.doubt, file.doubt_of_end}) {
      if (!doubt.empty())
        description.remarks.push_back(file.file.filename().string() + " has " + doubt);
    }
  }
}

// The parts of the task of the Long-Range Arena whose files lie in a folder by themselves; empty: there is none.
std::vector<LraPart> task_in(const std::filesystem::path& folder) {
  if (holds_lra(folder))
    return {};
  std::vector<LraPart> parts = find_lra(folder);
  const auto met = std::ranges::find_if(parts, &LraPart::is_there);
  const std::string task = met == parts.end() ? "" : met->task;
  std::erase_if(parts, [&](const LraPart& part) { return part.task != task; });
  return parts;
}

// The first folder in a folder that is a data set or holds a file of one; empty: there is none.
std::string first_set_below(const std::filesystem::path& folder) {
  for (const std::string& name : names_in(folder)) {
    const std::filesystem::path inner = folder / name;
    if (!is_folder(inner))
      continue;
    try {
      const auto files = files_in(inner);
      if (recognise(inner) || std::ranges::any_of(files, [](const auto& file) { return recognise(file) != nullptr; }))
        return inner.string();
    } catch (const bytes::FileError&) {
      continue;  // not a folder to point to
    }
  }
  return "";
}

}  // namespace

bool Description::sound() const {
  const bool no_errors = std::ranges::all_of(files, [](const FileDescription& file) { return file.error_count == 0; });
  const bool trainable = std::ranges::any_of(files, [this](const FileDescription& file) {
    return file.records > 0 && (file.part == "train" || files.size() == 1);
  });
  return no_errors && trainable && remarks.empty();
}

FileDescription describe_source(const std::filesystem::path& source, const ReaderOptions& options,
                                std::size_t most_errors) {
  return describe_file(source, options, most_errors);
}

Description describe_folder(const std::filesystem::path& path, const ReaderOptions& options, std::size_t most_errors) {
  const std::filesystem::path whole = DataPath::parse(path).path;
  struct stat status {};
  if (::stat(whole.c_str(), &status) != 0)
    throw bytes::FileError("open", whole, errno);
  Description description;
  description.path = path;
  if (!S_ISDIR(status.st_mode) || recognise(whole)) {
    description.files.push_back(describe_file(path, options, most_errors));
    if (const FileDescription& file = description.files.back();
        file.format.empty() && file.reason.empty() && file.error_count == 0)
      description.remarks.push_back("its name does not tell the format; name it with --format");
  } else {
    for (const auto& file : files_in(path)) {
      // A named format is for the files of its extensions: a folder may hold a page of notes as well.
      if (is_known(file)) {
        description.files.push_back(describe_file(file, options, most_errors));
        continue;
      }
      FileDescription& unknown = description.files.emplace_back();
      unknown.file = file;
      unknown.reason = unrecognised_reason(file);
    }
    const std::vector<LraPart> task = task_in(path);
    for (const LraPart& part : task) {
      const auto file = std::ranges::find(description.files, std::filesystem::path(part.path), &FileDescription::file);
      if (file != description.files.end())
        file->part = part.part;
      else
        description.missing.push_back("the " + part.part + " part, " +
                                      std::filesystem::path(part.layouts.front()).filename().string() +
                                      "; dba reproduce skips " + part.task + " without it");
    }
    const auto has = [&](std::string_view part) {
      return std::ranges::any_of(
          description.files, [part](const FileDescription& file) { return !file.format.empty() && file.part == part; });
    };
    if (const std::string inner = first_set_below(path); !inner.empty() && !has("train"))
      description.remarks.push_back("its folders are looked at one at a time, as in: dba data check " + inner);
    if (task.empty() && !has("train"))
      description.missing.push_back("a training part, a file such as train.jsonl");
    if (task.empty() && !has("validation"))
      description.missing.push_back(
          "a validation part, a file such as val.jsonl; without, some of the training part is held out");
    if (task.empty() && !has("test"))
      description.missing.push_back("a test part, a file such as test.jsonl");
  }
  remark_on_labels(description);
  remark_on_channels(description);
  remark_on_doubts(description);
  return description;
}

Description describe_parts(const std::filesystem::path& path,
                           const std::vector<std::pair<std::string, std::filesystem::path>>& parts,
                           const ReaderOptions& options, std::size_t most_errors) {
  Description description;
  description.path = path;
  description.nothing = "names no data that are there";
  for (const auto& [part, source] : parts) {
    if (source.empty())
      continue;
    const std::filesystem::path whole = DataPath::parse(source).path;
    if (!is_file(whole) && !is_folder(whole)) {
      description.missing.push_back("the " + part + " part, " + source.string());
      continue;
    }
    description.files.push_back(describe_file(source, options, most_errors));
    description.files.back().part = part;
  }
  remark_on_labels(description);
  remark_on_channels(description);
  remark_on_doubts(description);
  return description;
}

}  // namespace dba::data
