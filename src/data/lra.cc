#include "dba/data/lra.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "dba/data/data_path.h"
#include "folder_listing.h"
#include "packed_file.h"

namespace dba::data {
namespace {

struct KnownPart {
  const char* part;
  std::uint64_t published;
  std::vector<std::string> layouts;  // below the folder; what stands behind @ is a part of the file
};

struct KnownTask {
  const char* task;
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
         {{"train", 96'000, below(listops, "basic_train.tsv")},
          {"validation", 2'000, below(listops, "basic_val.tsv")},
          {"test", 2'000, below(listops, "basic_test.tsv")}}},
        {"text", {{"train", 25'000, imdb_part("train")}, {"test", 25'000, imdb_part("test")}}},
        {"retrieval",
         {{"train", 147'086, below(pairs, "new_aan_pairs.train.tsv")},
          {"validation", 18'090, below(pairs, "new_aan_pairs.eval.tsv")},
          {"test", 17'437, below(pairs, "new_aan_pairs.test.tsv")}}},
        {"image",
         {{"train", 45'000, images("cifar10_gray_train.bin", "", "@0-90%")},
          {"validation", 5'000, images("cifar10_gray_train.bin", "", "@90-100%")},
          {"test", 10'000, images("cifar10_gray_test.bin", "/test_batch.bin", "")}}},
        {"pathfinder",
         {{"train", 160'000, with_part(pathfinder, "@0-80%")},
          {"validation", 20'000, with_part(pathfinder, "@80-90%")},
          {"test", 20'000, with_part(pathfinder, "@90-100%")}}}};
  }();
  return tasks;
}

// Whether a path is there, and of the kind that its place is for: a file with an ending, or the folder of a data set.
bool is_there(const std::filesystem::path& path) {
  if (is_file(path))
    return path.has_extension();
  if (!is_folder(path))
    return false;
  for (const char* const sign : {"pos", "neg", "imgs", "metadata"}) {
    if (is_folder(path / sign))
      return true;
  }
  return is_file(path / "data_batch_1.bin");
}

}  // namespace

std::vector<LraPart> find_lra(const std::filesystem::path& folder) {
  std::vector<LraPart> parts;
  for (const KnownTask& task : known_tasks()) {
    for (const KnownPart& known : task.parts) {
      LraPart part{task.task, known.part, "", "", known.published, known.layouts};
      for (const std::string& layout : known.layouts) {
        const std::string file = layout.substr(0, layout.find('@'));
        if (part.path.empty() && is_there(folder / file))
          part.path = (folder / layout).string();
        part.looked_for += (part.looked_for.empty() ? "" : ", ") + file;
      }
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

bool holds_lra(const std::filesystem::path& folder) {
  std::set<std::string> tasks;
  bool deeper = false;
  const std::filesystem::path here = (folder / "file").parent_path();  // without a slash at its end
  for (const LraPart& part : find_lra(folder)) {
    if (part.path.empty())
      continue;
    const std::filesystem::path path = DataPath::parse(part.path).path;
    tasks.insert(part.task);
    deeper = deeper || is_folder(path) || path.parent_path() != here;
  }
  return deeper || tasks.size() > 1;
}

namespace {

std::vector<std::string> packed_in(const std::filesystem::path& folder) {
  std::vector<std::string> faults;
  for (const std::string& name : names_in(folder)) {
    if (!is_file(folder / name))
      continue;
    if (const std::string fault = packed_fault(folder / name); !fault.empty())
      faults.push_back(name + ": " + fault);
  }
  return faults;
}

}  // namespace

LraReport check_lra(const std::filesystem::path& folder, std::size_t most_errors) {
  LraReport report;
  for (LraPart& part : find_lra(folder)) {
    LraFinding finding{std::move(part), {}};
    if (!finding.where.path.empty()) {
      finding.what = describe_source(finding.where.path, {}, most_errors);
      finding.what.part = finding.where.part;
    }
    report.findings.push_back(std::move(finding));
  }
  if (std::ranges::any_of(report.findings, [](const LraFinding& finding) { return finding.where.path.empty(); }))
    report.packed = packed_in(folder);
  return report;
}

bool LraReport::sound() const {
  return std::ranges::all_of(findings, [this](const LraFinding& finding) {
    if (!finding.where.path.empty())
      return finding.what.error_count == 0 && finding.what.records > 0;
    return std::ranges::none_of(findings, [&](const LraFinding& other) {
      return other.where.task == finding.where.task && !other.where.path.empty();
    });
  });
}

std::string LraReport::to_text() const {
  std::ostringstream out;
  std::string task;
  for (const LraFinding& finding : findings) {
    const bool first = task != finding.where.task;
    task = finding.where.task;
    const bool any = std::ranges::any_of(
        findings, [&](const LraFinding& other) { return other.where.task == task && !other.where.path.empty(); });
    if (first)
      out << task << (any ? "\n" : ": missing; looked for " + finding.where.looked_for + "\n");
    if (!any)
      continue;
    out << "  " << finding.where.part << ": ";
    if (finding.where.path.empty()) {
      out << "missing; looked for " << finding.where.looked_for << "\n";
      continue;
    }
    const FileDescription& what = finding.what;
    out << bytes::counted(what.records, "example");
    out << (what.records == finding.where.published ? ", as published"
                                                    : ", published: " + std::to_string(finding.where.published));
    for (const auto& [label, count] : what.classes)
      out << (label == what.classes.begin()->first ? "; " : ", ") << count << " of " << bytes::in_quotes(label);
    out << "\n    " << finding.where.path << ", " << (what.format.empty() ? "not recognised" : what.format) << "\n";
    if (!what.sha256.empty())
      out << "    sha256 " << what.sha256 << "\n";
    for (const std::string& error : what.errors)
      out << "    " << error << "\n";
    if (what.error_count > what.errors.size())
      out << "    … and " << what.error_count - what.errors.size() << " more\n";
  }
  for (const std::string& fault : packed)
    out << fault << "\n";
  return out.str();
}

std::string LraReport::to_json() const {
  nlohmann::json tasks = nlohmann::json::object();
  for (const LraFinding& finding : findings) {
    nlohmann::json part = {{"published", finding.where.published}};
    if (finding.where.path.empty()) {
      part["missing"] = finding.where.looked_for;
    } else {
      const FileDescription& what = finding.what;
      part.update({{"path", finding.where.path},
                   {"format", what.format},
                   {"records", what.records},
                   {"classes", what.classes},
                   {"sha256", what.sha256},
                   {"error_count", what.error_count},
                   {"errors", what.errors}});
    }
    tasks[finding.where.task][finding.where.part] = part;
  }
  const nlohmann::json object = {{"sound", sound()}, {"tasks", tasks}, {"packed", packed}};
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace dba::data
