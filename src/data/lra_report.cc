#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bytes/count.h"
#include "cache_comparison.h"
#include "dba/bytes/errors.h"
#include "dba/data/data_path.h"
#include "dba/data/lra.h"
#include "dba/data/pathfinder.h"
#include "folder_listing.h"
#include "label_remarks.h"
#include "packed_file.h"
#include "unreadable.h"

namespace dba::data {
namespace {

// Whether an archive under its published name has been unpacked: the tasks that it holds are there.
bool is_unpacked(const std::string& name, const std::vector<LraFinding>& findings) {
  static const std::map<std::string, std::vector<std::string>> archives = {
      {"aclImdb_v1.tar.gz", {"text"}},
      {"cifar-10-binary.tar.gz", {"image"}},
      {"lra_release.gz", {"listops", "retrieval", "pathfinder"}}};
  const auto archive = archives.find(name);
  return archive != archives.end() && std::ranges::all_of(archive->second, [&](const std::string& task) {
           return std::ranges::any_of(findings, [&](const LraFinding& finding) {
             return finding.where.task == task && finding.where.is_there();
           });
         });
}

std::vector<std::string> packed_in(const std::filesystem::path& folder, const std::vector<LraFinding>& findings) {
  std::vector<std::string> faults;
  try {
    for (const std::string& name : names_in(folder)) {
      if (!is_file(folder / name) || is_unpacked(name, findings))
        continue;
      if (const std::string fault = packed_fault(folder / name); !fault.empty())
        faults.push_back(name + ": " + fault);
    }
  } catch (const bytes::FileError& error) {
    faults.push_back(with_remedy(error));
  }
  return faults;
}

// Whether there is something to say of a part beyond that it is missing.
bool is_met(const LraFinding& finding) {
  return finding.where.is_there() || !finding.where.unreadable.empty();
}

// Fewer examples than that may lack a class by chance.
constexpr std::uint64_t kEnoughOfEachClass = 20;

std::string file_name(const FileDescription& file) {
  return file.file.filename().string();
}

// What training, choosing or testing would refuse or do without.
void remark_on_parts(const std::string& task, const std::vector<const LraFinding*>& parts, LraReport& report) {
  Description description;
  for (const LraFinding* part : parts)
    description.files.push_back(part->taken());
  remark_on_labels(description);
  const auto training = std::ranges::find(description.files, "train", &FileDescription::part);
  for (const FileDescription& file : description.files) {
    if (file.unlabelled > 0 && file.classes.empty() && file.part != "train")
      description.remarks.push_back(file_name(file) +
                                    " has no labels; no accuracy can be measured on it: fetch it again");
    const auto doubt = [&](const std::string& what) {
      if (!what.empty())
        description.remarks.push_back(DataPath::parse(file.file).path.filename().string() + " has " + what);
    };
    doubt(file.doubt);
    const auto same = std::ranges::find(parts, file.part, [](const LraFinding* part) { return part->where.part; });
    if (file.records != (*same)->where.published)
      doubt(file.doubt_of_end);
    if (training == description.files.end() || file.records < kEnoughOfEachClass * training->classes.size())
      continue;
    for (const auto& [label, count] : training->classes) {
      if (!file.classes.empty() && !file.classes.contains(label))
        description.remarks.push_back(file_name(file) + " has no example of " + bytes::in_quotes(label) +
                                      ", which the training part has; fetch or generate both anew");
    }
  }
  for (const LraFinding* part : parts) {
    const FileDescription& source = part->what;
    const FileDescription& cache = part->cached;
    if (source.records == 0 || cache.records == 0)
      continue;
    std::string other;
    if (source.records != cache.records || source.classes != cache.classes)
      other = bytes::counted(cache.records, "example") + " and " + std::to_string(source.records) + ", or other labels";
    else if (const std::string first = first_other_example(part->where.cache, part->where.path); !first.empty())
      other = "the first example that differs is " + first;
    if (!other.empty())
      description.remarks.push_back(part->where.cache + ", which runs take, is not of " + part->where.path + ": " +
                                    other + "; make it anew with dba data cache, or delete one of them");
  }
  for (const LraFinding* part : parts) {
    const FileDescription& taken = part->taken();
    if (taken.classes.size() > part->where.classes)
      description.remarks.push_back(file_name(taken) + " has " +
                                    bytes::counted(taken.classes.size(), "class", "classes") + ", expected " +
                                    std::to_string(part->where.classes) + "; fetch or generate it again");
  }
  for (const std::string& remark : description.remarks)
    if (const std::string text = task + ": " + remark; std::ranges::find(report.remarks, text) == report.remarks.end())
      report.remarks.push_back(text);
}

// Other numbers of examples than the published ones; empty: there are none.
std::string other_counts(const std::string& task, const std::vector<const LraFinding*>& parts) {
  std::string counts;
  for (const LraFinding* part : parts) {
    const std::uint64_t found = part->taken().records;
    if (found > 0 && found != part->where.published)
      counts += (counts.empty() ? "" : ", ") + part->where.part + " " + bytes::with_commas(part->where.published) +
                " expected, " + bytes::with_commas(found) + " found";
  }
  return counts.empty() ? ""
                        : task + ": other counts than published: " + counts +
                              "; fetch it again, unless it is meant to be another set";
}

// Examples without a text, which training takes as they are; empty: there are none.
std::string without_text(const LraFinding& part) {
  const FileDescription& file = part.what.empty > 0 ? part.what : part.cached;
  if (file.empty == 0)
    return "";
  return part.where.task + ": " + part.where.part + " has " + bytes::counted(file.empty, "example") + " without text" +
         (file.first_empty.empty() ? "" : ", the first at " + file.first_empty) +
         "; fetch it again, unless it is meant to be so";
}

}  // namespace

LraReport check_lra(const std::filesystem::path& folder, std::size_t most_errors) {
  LraReport report;
  const auto describe = [&](const std::string& path, const LraPart& part) {
    ReaderOptions options;
    options.side = part.task == "pathfinder" ? kPathfinderSide : 0;
    FileDescription what;
    if (!path.empty())
      what = describe_source(path, options, most_errors);
    what.part = part.part;
    return what;
  };
  for (LraPart& part : find_lra(folder)) {
    LraFinding finding{std::move(part), {}, {}};
    finding.what = describe(finding.where.path, finding.where);
    finding.cached = describe(finding.where.cache, finding.where);
    report.findings.push_back(std::move(finding));
  }
  std::map<std::string, std::vector<const LraFinding*>> tasks;
  for (const LraFinding& finding : report.findings)
    if (finding.where.is_there())
      tasks[finding.where.task].push_back(&finding);
  for (const auto& [task, parts] : tasks) {
    remark_on_parts(task, parts, report);
    if (const std::string counts = other_counts(task, parts); !counts.empty())
      report.notes.push_back(counts);
    for (const LraFinding* part : parts)
      if (const std::string empty = without_text(*part); !empty.empty())
        report.notes.push_back(empty);
  }
  if (std::ranges::any_of(report.findings, [](const LraFinding& finding) { return !finding.where.is_there(); }))
    report.packed = packed_in(folder, report.findings);
  return report;
}

bool LraReport::sound() const {
  const auto is_sound = [](const std::string& path, const FileDescription& file) {
    return path.empty() || (file.error_count == 0 && file.records > 0);
  };
  return remarks.empty() && packed.empty() && std::ranges::all_of(findings, [&](const LraFinding& finding) {
           if (finding.where.is_there())
             return is_sound(finding.where.path, finding.what) && is_sound(finding.where.cache, finding.cached);
           return std::ranges::none_of(findings, [&](const LraFinding& other) {
             return other.where.task == finding.where.task && is_met(other);
           });
         });
}

namespace {

void write_source(std::ostream& out, const std::string& path, const FileDescription& what) {
  out << "    " << path << ", "
      << (what.format.empty() ? (what.error_count > 0 ? "not read" : "not recognised") : what.format)
      << (what.reason.empty() ? "" : "; it " + what.reason) << "\n";
  if (!what.sha256.empty())
    out << "    sha256 " << what.sha256 << "\n";
  if (!what.digest.empty())
    out << "    data digest " << what.digest << "\n";
  for (const std::string& error : what.errors)
    out << "    " << error << "\n";
  if (what.error_count > what.errors.size())
    out << "    … and " << what.error_count - what.errors.size() << " more\n";
}

nlohmann::json json_of(const std::string& path, const FileDescription& what) {
  return {{"path", path},
          {"format", what.format},
          {"reason", what.reason},
          {"records", what.records},
          {"unlabelled", what.unlabelled},
          {"empty", what.empty},
          {"classes", what.classes},
          {"sha256", what.sha256},
          {"digest", what.digest},
          {"error_count", what.error_count},
          {"errors", what.errors}};
}

}  // namespace

std::string LraReport::to_text() const {
  std::ostringstream out;
  std::string task;
  for (const LraFinding& finding : findings) {
    const bool first = task != finding.where.task;
    task = finding.where.task;
    const bool any = std::ranges::any_of(
        findings, [&](const LraFinding& other) { return other.where.task == task && is_met(other); });
    if (first)
      out << task << (any ? "\n" : ": missing; looked for " + finding.where.looked_for + "\n");
    if (!any)
      continue;
    out << "  " << finding.where.part << ": ";
    if (!finding.where.unreadable.empty()) {
      out << finding.where.unreadable << "\n";
      continue;
    }
    if (!finding.where.is_there()) {
      out << "missing; looked for " << finding.where.looked_for << "\n";
      continue;
    }
    const FileDescription& taken = finding.taken();
    out << bytes::counted(taken.records, "example");
    out << (taken.records == finding.where.published ? ", as published"
                                                     : ", published: " + std::to_string(finding.where.published));
    for (const auto& [label, count] : taken.classes)
      out << (label == taken.classes.begin()->first ? "; " : ", ") << count << " of " << bytes::in_quotes(label);
    if (taken.unlabelled > 0)
      out << "; " << taken.unlabelled << " without a label";
    out << "\n";
    if (!finding.where.cache.empty())
      write_source(out, finding.where.cache, finding.cached);
    if (!finding.where.path.empty())
      write_source(out, finding.where.path, finding.what);
  }
  for (const std::string& remark : remarks)
    out << "note: " << remark << "\n";
  for (const std::string& note : notes)
    out << "note: " << note << "\n";
  for (const std::string& fault : packed)
    out << fault << "\n";
  return out.str();
}

std::string LraReport::to_json() const {
  nlohmann::json tasks = nlohmann::json::object();
  for (const LraFinding& finding : findings) {
    nlohmann::json part = {{"published", finding.where.published}};
    if (!finding.where.unreadable.empty())
      part["unreadable"] = finding.where.unreadable;
    else if (!finding.where.is_there())
      part["missing"] = finding.where.looked_for;
    if (!finding.where.path.empty())
      part.update(json_of(finding.where.path, finding.what));
    if (!finding.where.cache.empty())
      part["cache"] = json_of(finding.where.cache, finding.cached);
    tasks[finding.where.task][finding.where.part] = part;
  }
  const nlohmann::json object = {
      {"sound", sound()}, {"tasks", tasks}, {"remarks", remarks}, {"notes", notes}, {"packed", packed}};
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace dba::data
