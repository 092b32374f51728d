#include "label_remarks.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "quoted_list.h"

namespace dba::data {
namespace {

// Without the spaces around it, in lower case.
std::string folded(const std::string& label) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  const auto begin = std::ranges::find_if_not(label, is_space);
  const auto end = std::find_if_not(label.rbegin(), std::make_reverse_iterator(begin), is_space).base();
  std::string text(begin, end);
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string without_labels(const FileDescription& file) {
  if (file.unlabelled == 0)
    return "";
  if (!file.classes.empty())
    return bytes::counted(file.unlabelled, "record") + " without a label, which training and evaluation refuse; " +
           (file.unlabelled == 1 ? "give it one or leave it out" : "give them one or leave them out");
  return file.part == "train" ? "no labels; a classifier cannot be trained on it" : "";
}

}  // namespace

std::string written_in_two_ways(const Classes& classes) {
  std::map<std::string, std::string> seen;  // folded → as written
  for (const auto& [label, count] : classes) {
    const auto [first, is_new] = seen.emplace(folded(label), label);
    if (!is_new) {
      return "the labels " + bytes::in_quotes(first->second) + " (" + std::to_string(classes.at(first->second)) +
             ") and " + bytes::in_quotes(label) + " (" + std::to_string(count) +
             "), which differ in case or spaces alone; write them alike if they are one class";
    }
  }
  return "";
}

std::vector<std::string> classes_without_examples(const std::vector<std::string>& listed, const Classes& classes) {
  std::vector<std::string> lacking;
  std::ranges::copy_if(listed, std::back_inserter(lacking),
                       [&](const std::string& name) { return !classes.contains(name); });
  return lacking;
}

std::string without_examples(const std::vector<std::string>& classes) {
  if (classes.empty())
    return "";
  constexpr std::size_t kMost = 12;
  const bool one = classes.size() == 1;
  return std::string("no example of ") + (one ? "the class " : "the classes ") + quoted_list(classes, kMost) +
         (one ? ", which its header lists and no model will predict; add examples of it or leave it out of the header"
              : ", which its header lists and no model will predict; add examples of them or leave them out of the "
                "header");
}

void remark_on_labels(Description& description) {
  Classes training;
  bool any_training = false;
  for (const FileDescription& file : description.files) {
    if (file.part == "train" || description.files.size() == 1) {
      any_training = any_training || file.records > 0;  // of what was not read nothing is known
      training.insert(file.classes.begin(), file.classes.end());
    }
  }
  if (any_training && training.size() == 1)
    description.remarks.push_back("the training part has one class only, " + bytes::in_quotes(training.begin()->first));
  for (const FileDescription& file : description.files) {
    const auto remark = [&](const std::string& what) {
      if (!what.empty())
        description.remarks.push_back(file.file.filename().string() + " has " + what);
    };
    remark(without_labels(file));
    remark(written_in_two_ways(file.classes));
    const bool is_training = file.part == "train" || (file.part.empty() && description.files.size() == 1);
    // A bad row may be of any class.
    if (is_training && !file.classes.empty() && file.error_count == 0)
      remark(without_examples(classes_without_examples(file.listed_classes, file.classes)));
    const auto lacking =
        std::ranges::find_if(file.classes, [&](const auto& entry) { return !training.contains(entry.first); });
    if (any_training && lacking != file.classes.end())
      remark("the label " + bytes::in_quotes(lacking->first) + ", which the training part lacks");
  }
}

}  // namespace dba::data
