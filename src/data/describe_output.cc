#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "dba/data/describe.h"

namespace dba::data {
namespace {

void write_file(std::ostream& out, const FileDescription& file) {
  out << file.file.string() << "\n";
  if (file.format.empty() && file.error_count > 0) {
    for (const std::string& error : file.errors)
      out << "  " << error << "\n";
    return;
  }
  if (file.format.empty()) {
    out << "  not recognised" << (file.reason.empty() ? "" : "; it " + file.reason) << "\n";
    return;
  }
  out << "  " << file.format << (file.part.empty() ? "" : ", " + file.part + " part") << ": "
      << bytes::counted(file.records, "record");
  if (!file.content.empty()) {
    const std::string channels = file.channels > 0 ? ", " + bytes::counted(file.channels, "channel") : "";
    out << " (" << file.content << channels << ")";
  }
  out << "\n";
  if (!file.sha256.empty())
    out << "  sha256 " << file.sha256 << "\n";
  if (!file.digest.empty())
    out << "  data digest " << file.digest << "\n";
  for (const LengthSummary& length : file.lengths) {
    out << "  length in " << length.unit << ": " << length.shortest << " to " << length.longest << ", mean "
        << std::fixed << std::setprecision(1) << length.mean << "\n";
  }
  if (!file.classes.empty()) {
    constexpr std::size_t kMost = 20;
    out << "  " << bytes::counted(file.classes.size(), "class", "classes") << ":";
    std::size_t shown = 0;
    for (const auto& [label, count] : file.classes) {
      if (shown++ == kMost) {
        out << " …";
        break;
      }
      out << (shown > 1 ? ", " : " ") << bytes::in_quotes(label) << " " << count;
    }
    out << "\n";
  }
  if (file.unlabelled > 0)
    out << "  without a label: " << file.unlabelled << "\n";
  if (file.empty > 0) {
    out << "  without text: " << bytes::counted(file.empty, "record")
        << (file.first_empty.empty() ? "" : ", the first at " + file.first_empty) << "\n";
  }
  if (file.not_utf8 > 0) {
    out << "  not UTF-8: " << bytes::counted(file.not_utf8, "text") << ", the first at " << file.first_not_utf8
        << "; bytes are taken as they are\n";
  }
  if (file.repairs.missing_values > 0) {
    out << "  missing values: " << file.repairs.missing_values << " in " << file.repairs.series
        << " series, to be filled; channels without any value: " << file.repairs.empty_channels << "\n";
  }
  if (!file.constant_channels.empty()) {
    constexpr std::size_t kMost = 20;
    out << "  constant channels, which standardising brings to 0:";
    for (std::size_t i = 0; i < std::min(kMost, file.constant_channels.size()); ++i)
      out << (i > 0 ? ", " : " ") << file.constant_channels[i];
    if (file.constant_channels.size() > kMost)
      out << ", … (" << file.constant_channels.size() << " in all)";
    out << "\n";
  }
  if (file.error_count > 0)
    out << "  errors: " << file.error_count << "\n";
  for (const std::string& error : file.errors)
    out << "    " << error << "\n";
  if (file.error_count > file.errors.size())
    out << "    … and " << file.error_count - file.errors.size() << " more\n";
}

nlohmann::json as_json(const FileDescription& file) {
  nlohmann::json lengths = nlohmann::json::array();
  for (const LengthSummary& length : file.lengths) {
    lengths.push_back(
        {{"unit", length.unit}, {"shortest", length.shortest}, {"longest", length.longest}, {"mean", length.mean}});
  }
  nlohmann::json object = {{"file", file.file.string()},
                           {"recognised", !file.format.empty()},
                           {"reason", file.reason},
                           {"part", file.part},
                           {"format", file.format},
                           {"content", file.content},
                           {"records", file.records},
                           {"unlabelled", file.unlabelled},
                           {"empty", file.empty},
                           {"not_utf8", file.not_utf8},
                           {"sha256", file.sha256},
                           {"digest", file.digest},
                           {"channels", file.channels},
                           {"constant_channels", file.constant_channels},
                           {"lengths", lengths},
                           {"errors", file.errors},
                           {"error_count", file.error_count}};
  object["classes"] = nlohmann::json::object();
  for (const auto& [label, count] : file.classes)
    object["classes"][label] = count;
  object["repairs"] = {{"missing_values", file.repairs.missing_values},
                       {"series", file.repairs.series},
                       {"empty_channels", file.repairs.empty_channels}};
  return object;
}

}  // namespace

std::string Description::to_text() const {
  std::ostringstream out;
  if (files.empty())
    out << path.string() << "\n  " << nothing << "\n";
  for (const FileDescription& file : files)
    write_file(out, file);
  for (const std::string& remark : remarks)
    out << "note: " << remark << "\n";
  for (const std::string& part : missing)
    out << "missing: " << part << "\n";
  return out.str();
}

std::string Description::to_json() const {
  nlohmann::json object = {{"path", path.string()}, {"sound", sound()}, {"missing", missing}, {"remarks", remarks}};
  object["files"] = nlohmann::json::array();
  for (const FileDescription& file : files)
    object["files"].push_back(as_json(file));
  // Labels and messages may hold bytes that are no UTF-8.
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace dba::data
