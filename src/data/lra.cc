#include "dba/data/lra.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>

#include "dba/data/data_path.h"
#include "folder_listing.h"
#include "readers.h"
#include "unreadable.h"

namespace dba::data {
namespace {

struct KnownPart {
  const char* part;
  std::uint64_t published;
  std::vector<std::string> layouts;  // below the folder; what stands behind @ is a part of the file
};

struct KnownTask {
  const char* task;
  std::size_t classes;
  std::vector<KnownPart> parts;
};

std::vector<std::string> below(const std::vector<std::string>& folders, const std::string& name) {
  std::vector<std::string> paths;
  for (const std::string& folder : folders)
    paths.push_back(folder + name);
  return paths;
}

std::vector<std::string> with_part(std::vector<std::string> paths, const std::string& part) {
  for (std::string& path : paths)
    path += part;
  return paths;
}

const std::vector<KnownTask>& known_tasks() {
  static const std::vector<KnownTask> tasks = [] {
    const std::vector<std::string> listops = {"listops/", "", "listops-1000/", "lra_release/listops-1000/"};
    const std::vector<std::string> text = {"aclImdb/", "", "imdb/"};
    const std::vector<std::string> pairs = {"aan/", "", "tsv_data/", "lra_release/tsv_data/"};
    const std::vector<std::string> grey = {"", "cifar10/"};
    const std::vector<std::string> colour = {"cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10"};
    const std::vector<std::string> pathfinder = {"pathfinder32.bin",
                                                 "pathfinder32/pathfinder32.bin",
                                                 "pathfinder32/curv_contour_length_14",
                                                 "lra_release/pathfinder32/curv_contour_length_14",
                                                 "curv_contour_length_14",
                                                 "pathfinder32"};
    const auto imdb_part = [&](const std::string& part) {
      std::vector<std::string> paths = below(text, part);
      paths.push_back("imdb/" + part + ".csv");
      return paths;
    };
    const auto images = [&](const std::string& grey_name, const std::string& colour_name, const std::string& part) {
      std::vector<std::string> paths = with_part(below(grey, grey_name), part);
      for (const std::string& folder : colour)
        paths.push_back(folder + colour_name + part);
      return paths;
    };
    return std::vector<KnownTask>{
        {"listops",
         10,
         {{"train", 96'000, below(listops, "basic_train.tsv")},
          {"validation", 2'000, below(listops, "basic_val.tsv")},
          {"test", 2'000, below(listops, "basic_test.tsv")}}},
        {"text", 2, {{"train", 25'000, imdb_part("train")}, {"test", 25'000, imdb_part("test")}}},
        {"retrieval",
         2,
         {{"train", 147'086, below(pairs, "new_aan_pairs.train.tsv")},
          {"validation", 18'090, below(pairs, "new_aan_pairs.eval.tsv")},
          {"test", 17'437, below(pairs, "new_aan_pairs.test.tsv")}}},
        {"image",
         10,
         {{"train", 45'000, images("cifar10_gray_train.bin", "", "@0-90%")},
          {"validation", 5'000, images("cifar10_gray_train.bin", "", "@90-100%")},
          {"test", 10'000, images("cifar10_gray_test.bin", "/test_batch.bin", "")}}},
        {"pathfinder",
         2,
         {{"train", 160'000, with_part(pathfinder, "@0-80%")},
          {"validation", 20'000, with_part(pathfinder, "@80-90%")},
          {"test", 20'000, with_part(pathfinder, "@90-100%")}}}};
  }();
  return tasks;
}

constexpr std::array kSigns = {"pos", "neg", "imgs", "metadata"};

// Whether a path is there, and of the kind that its place is for: a file with an ending, or the folder of a data set.
bool is_there(const std::filesystem::path& path) {
  if (is_file(path))
    return path.has_extension();
  if (!is_folder(path))
    return false;
  for (const char* const sign : kSigns) {
    if (is_folder(path / sign))
      return true;
  }
  return is_cifar10_folder(path);
}

// Why it cannot be told whether a path is there; empty: it is not.
std::string hidden(const std::filesystem::path& folder, const std::string& below) {
  std::string reason = unreadable_reason(folder, below);
  for (const char* const sign : kSigns) {
    if (reason.empty() && is_folder(folder / below))
      reason = unreadable_reason(folder / below, sign);
  }
  return reason;
}

}  // namespace

std::vector<LraPart> find_lra(const std::filesystem::path& folder) {
  std::vector<LraPart> parts;
  for (const KnownTask& task : known_tasks()) {
    for (const KnownPart& known : task.parts) {
      LraPart part{task.task, known.part, "", "", known.published, known.layouts, "", task.classes};
      if (const auto cache = folder / part.task / (part.part + ".cache"); is_file(cache))
        part.cache = cache.string();
      for (const std::string& layout : known.layouts) {
        const std::string file = layout.substr(0, layout.find('@'));
        if (part.path.empty() && is_there(folder / file))
          part.path = (folder / layout).string();
        else if (part.path.empty() && part.unreadable.empty())
          part.unreadable = hidden(folder, file);
        part.looked_for += (part.looked_for.empty() ? "" : ", ") + file;
      }
      if (part.is_there())
        part.unreadable.clear();
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

bool holds_lra(const std::filesystem::path& folder) {
  if (::access(folder.c_str(), X_OK) != 0)
    return false;
  std::set<std::string> tasks;
  bool deeper = false;
  const std::filesystem::path here = (folder / "file").parent_path();  // without a slash at its end
  for (const LraPart& part : find_lra(folder)) {
    if (!part.cache.empty()) {
      tasks.insert(part.task);
      deeper = true;
    }
    deeper = deeper || !part.unreadable.empty();
    if (part.path.empty())
      continue;
    const std::filesystem::path path = DataPath::parse(part.path).path;
    tasks.insert(part.task);
    deeper = deeper || is_folder(path) || path.parent_path() != here || is_grey_name(path.filename().string());
  }
  return deeper || tasks.size() > 1;
}

}  // namespace dba::data
