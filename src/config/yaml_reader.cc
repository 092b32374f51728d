#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "dba/bytes/errors.h"
#include "dba/bytes/mapped_file.h"
#include "dba/config/config_file.h"
#include "value.h"

namespace dba::config {
namespace {

using bytes::FormatError;
using bytes::in_quotes;

[[noreturn]] void fail(const std::string& source, const YAML::Mark& mark, const std::string& what) {
  const std::string place =
      mark.is_null() ? "" : ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
  throw FormatError(source + place + ": " + what);
}

[[noreturn]] void fail_empty(const std::string& source) {
  throw FormatError(source + ":1:1: the file is empty; expected keys such as \"seed: 1\"");
}

// Takes the parser's events as they come. No tree is built and nothing is kept but the configuration, so that neither
// nesting nor aliases can make a small file large.
class Reader : public YAML::EventHandler {
 public:
  explicit Reader(std::string source) : source_(std::move(source)) {}

  TrainConfig config;
  bool any_document = false;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (any_document)
      fail(source_, mark, "a second document begins; a configuration is one YAML document");
    any_document = true;
  }
  void OnDocumentEnd() override {}

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    fail(source_, mark, "an alias (*name); write the value out, configurations have no aliases");
  }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    if (depth_ == 0)
      fail_empty(source_);
    if (list_)
      fail(source_, mark, std::string(key_->name) + ": an empty item in a list");
    if (!awaits_value_)
      fail(source_, mark, "a key without a name");
    // A section in which nothing is left has nothing to say.
    if (key_)
      set(mark, {});
    awaits_value_ = false;
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    refuse_anchor(mark, anchor);
    // What the parser calls scalars that nobody tagged: "?" plain ones, "!" those in quotes.
    if (tag != "?" && tag != "!" && !tag.empty())
      fail(source_, mark, "a tag, " + in_quotes(tag) + "; configurations have none");
    if (depth_ == 0)
      fail(source_, mark, "expected a mapping, as in \"seed: 1\"; got " + in_quotes(text));
    if (list_) {
      list_->items.push_back(text);
      list_->quoted |= tag == "!";
    } else if (awaits_value_) {
      if (!key_)
        fail(source_, mark, section_ + " is a section: expected its keys below it; got " + in_quotes(text));
      set(mark, {Value::Shape::scalar, {text}, tag == "!"});
      awaits_value_ = false;
    } else {
      begin_key(mark, text);
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_anchor(mark, anchor);
    if (depth_ == 0)
      fail(source_, mark, "expected a mapping, as in \"seed: 1\"; got a list");
    if (list_ || !awaits_value_)
      fail(source_, mark, "a list where none can be");
    if (!key_)
      fail(source_, mark, section_ + " is a section: expected its keys below it; got a list");
    list_ = Value{Value::Shape::list, {}, false};
    list_mark_ = mark;
  }
  void OnSequenceEnd() override {
    set(list_mark_, *list_);
    list_.reset();
    awaits_value_ = false;
  }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    refuse_anchor(mark, anchor);
    if (depth_ > 0 && (list_ || !awaits_value_))
      fail(source_, mark, "a mapping where none can be");
    if (key_)
      fail(source_, mark, std::string(key_->name) + ": expected " + expectation(*key_) + "; got a mapping");
    ++depth_;
    awaits_value_ = false;
  }
  void OnMapEnd() override {
    --depth_;
    section_.clear();
    awaits_value_ = false;
  }

 private:
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0)
      fail(source_, mark, "an anchor (&name); configurations have none");
  }

  // depth_ 1: between sections and top-level keys; 2: inside section_.
  void begin_key(const YAML::Mark& mark, const std::string& text) {
    const std::string name = depth_ == 2 ? section_ + "." + text : text;
    const bool nested = name == text && text.find('.') != std::string::npos;
    const bool section = depth_ == 1 && find_section(name) != nullptr;
    key_ = nested ? nullptr : find_key(name);
    if (!key_ && !section) {
      const std::string nearest = nearest_name(name);
      const std::string remedy = nearest == name ? "write the part behind the dot below the section"
                                                 : "the nearest known one is " + in_quotes(nearest);
      fail(source_, mark, "unknown key " + in_quotes(name) + "; " + remedy);
    }
    if (!seen_.insert(name).second)
      fail(source_, mark, "the key " + in_quotes(name) + " stands here a second time");
    if (section)
      section_ = name;
    awaits_value_ = true;
  }

  void set(const YAML::Mark& mark, const Value& value) {
    if (const auto error = assign(config, *key_, value))
      fail(source_, mark, *error);
    key_ = nullptr;
  }

  std::string source_;
  std::set<std::string> seen_;
  int depth_ = 0;
  std::string section_;
  const Key* key_ = nullptr;   // whose value comes next; null while awaits_value_: that of section_
  bool awaits_value_ = false;  // the last event was a key
  std::optional<Value> list_;
  YAML::Mark list_mark_;
};

}  // namespace

TrainConfig parse_config(std::string_view text, const std::string& source) {
  if (text.size() > kLargestFile) {
    throw FormatError(source + ": " + std::to_string(text.size()) + " bytes; a configuration has at most " +
                      std::to_string(kLargestFile));
  }
  Reader reader(source);
  // Without the mark of a document's end the parser takes quoted text that never ends for text that ends here.
  std::istringstream stream{std::string(text) + (text.ends_with('\n') ? "...\n" : "\n...\n")};
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(reader)) {
    }
  } catch (const YAML::Exception& error) {
    const bool open_quotes = error.msg == YAML::ErrorMsg::DOC_IN_SCALAR;
    fail(source, error.mark, "not YAML: " + (open_quotes ? "quoted text without its closing quote" : error.msg));
  }
  if (!reader.any_document)
    fail_empty(source);
  return reader.config;
}

TrainConfig load_config(const std::filesystem::path& path) {
  const bytes::MappedFile file(path);
  const auto content = file.bytes();
  return parse_config({reinterpret_cast<const char*>(content.data()), content.size()}, path.string());
}

}  // namespace dba::config
