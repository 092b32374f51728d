#include "dba/data/encoding.h"

#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "dba/data/json_text.h"
#include "json_scanner.h"
#include "tokeniser_json.h"

namespace dba::data {
namespace {

bool encode_series(const Encoding& encoding, const Example& example, const std::string& place,
                   std::vector<float>& values) {
  if (example.channels != encoding.channels) {
    const bool more = example.channels > encoding.channels;
    throw bytes::FormatError(place + ": the series has " + bytes::counted(example.channels, "channel") +
                             ", those of the training part " + std::to_string(encoding.channels) +
                             "; a channel is a dimension of a .ts row, a column of a table besides case, time and "
                             "label, or a number of each step in JSON: " +
                             (more
                                  ? "leave out those that the training part does not have"
                                  : "add those that are missing, with ? (in JSON null) for values that are not known"));
  }
  const TokeniserOptions& options = encoding.tokeniser.options();
  const std::size_t steps = example.values.size() / example.channels;
  values = example.values;
  if (options.max_length == 0 || steps <= options.max_length)
    return false;
  if (options.too_long == TooLong::refuse) {
    throw bytes::FormatError(place + ": a series of " + std::to_string(steps) + " steps, more than max_length " +
                             std::to_string(options.max_length) + "; raise it or let long series be cut");
  }
  values.resize(options.max_length * example.channels);
  return true;
}

}  // namespace

void Encoding::encode(const Example& example, const std::string& place, Encoded& encoded) const {
  if (kind_of(example.content) != kind) {
    throw bytes::FormatError(place + ": holds " + std::string(name_of(example.content)) +
                             ", but the training part is of kind " + std::string(name_of(kind)));
  }
  encoded.first.clear();
  encoded.second.clear();
  encoded.values.clear();
  encoded.cut = false;
  encoded.label = example.label ? labels.number_of(*example.label, place) : -1;
  switch (example.content) {
    case Content::text:
      encoded.cut = tokeniser.encode_text(example.text, place, encoded.first);
      break;
    case Content::pair: {
      const bool first_cut = tokeniser.encode_text(example.text, place, encoded.first);
      const bool second_cut = tokeniser.encode_text(example.second, place, encoded.second);
      encoded.cut = first_cut || second_cut;
      break;
    }
    case Content::integers:
      encoded.cut = tokeniser.encode_integers(example.integers, place, encoded.first);
      break;
    case Content::series:
      encoded.cut = encode_series(*this, example, place, encoded.values);
      break;
  }
}

std::string Encoding::to_json() const {
  return "{\"kind\":" + json_quoted(name_of(kind)) + ",\"channels\":" + std::to_string(channels) +
         ",\"tokeniser\":" + tokeniser.to_json() + ",\"labels\":" + labels.to_json() + "}";
}

Encoding Encoding::from_json(std::string_view text, const std::string& source) {
  Encoding encoding;
  std::set<std::string> seen;
  JsonScanner scanner(text);
  try {
    scanner.object([&](const std::string& key) {
      seen.insert(key);
      if (key == "kind") {
        std::string name;
        scanner.string(name);
        const auto kind = parse_kind(name);
        if (!kind)
          scanner.fail("kind must be tokens, pairs or series, not " + bytes::in_quotes(name));
        encoding.kind = *kind;
      } else if (key == "channels") {
        encoding.channels = static_cast<std::size_t>(
            scanner.unsigned_integer(std::numeric_limits<std::int32_t>::max(), "the number of channels"));
      } else if (key == "tokeniser") {
        encoding.tokeniser = scan_tokeniser(scanner);
      } else if (key == "labels") {
        const std::vector<std::string> names = scanner.strings();
        encoding.labels = LabelSet(names);
        if (encoding.labels.names() != names)
          scanner.fail("labels are out of order or one comes twice");
      } else {
        scanner.fail("unknown key " + bytes::in_quotes(key));
      }
    });
    scanner.expect_end();
  } catch (const JsonError& error) {
    throw bytes::FormatError(source + ": encoding: " + error.what());
  }
  for (const char* const key : {"kind", "channels", "tokeniser", "labels"}) {
    if (!seen.contains(key))
      throw bytes::FormatError(source + ": encoding: has no " + key);
  }
  if ((encoding.kind == Kind::series) != (encoding.channels > 0))
    throw bytes::FormatError(source + ": encoding: series, and only they, have channels");
  if (encoding.kind == Kind::series && encoding.tokeniser.leaves_any_out())
    throw bytes::FormatError(source + ": encoding: a series has no symbols that leave_out could leave out");
  return encoding;
}

Encoding learn_encoding(Reader& training, const TokeniserOptions& options) {
  TokeniserBuilder builder(options);
  std::set<std::string> labels;
  Encoding encoding;
  Example example;
  while (training.next(example)) {
    encoding.kind = kind_of(example.content);
    encoding.channels = example.channels;
    if (encoding.kind != Kind::series)
      builder.add(example, training.place());
    else if (!options.leave_out.empty())
      throw bytes::FormatError(training.place() + ": a series, which has no symbols that leave_out could leave out");
    if (example.label)
      labels.insert(*example.label);
  }
  if (encoding.kind == Kind::series && training.repairs().empty_channels == training.count() * encoding.channels) {
    throw bytes::FormatError(training.file() + ": every value of every series is missing (" +
                             std::to_string(training.repairs().missing_values) +
                             " in all); write numbers where they are known");
  }
  if (labels.empty())
    throw bytes::FormatError(training.file() + ": no example has a label; a classifier cannot be trained on it");
  if (labels.size() == 1) {
    throw bytes::FormatError(training.file() + ": " +
                             (training.count() == 1 ? "its only example has"
                                                    : "all " + std::to_string(training.count()) + " examples have") +
                             " the label " + bytes::in_quotes(*labels.begin()) +
                             "; a classifier needs at least two classes");
  }
  encoding.tokeniser = encoding.kind == Kind::series ? Tokeniser(options) : builder.build();
  encoding.labels = LabelSet({labels.begin(), labels.end()});
  return encoding;
}

}  // namespace dba::data
