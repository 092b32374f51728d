#include <torch/torch.h>

#include <algorithm>
#include <charconv>

#include "bytes/quote.h"
#include "config/keys.h"
#include "dba/nn/make_attention.h"
#include "dba/zoo.h"
#include "zoo/members.h"

namespace dba::zoo {
namespace {

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void check_value(const Member& member, const Option& option, const std::string& value) {
  if (!option.choices.empty()) {
    TORCH_CHECK(std::find(option.choices.begin(), option.choices.end(), value) != option.choices.end(),
                "dba::zoo: option ", option.name, " of ", member.name, " must be one of ",
                c10::Join(", ", option.choices), ", got ", bytes::double_quoted(value));
    return;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool whole = end == value.data() + value.size() && error != std::errc::invalid_argument;
  const bool huge = whole && error == std::errc::result_out_of_range && value.front() != '-';
  TORCH_CHECK(huge || (whole && error == std::errc() && number >= option.least), "dba::zoo: option ", option.name,
              " of ", member.name, " must be an integer of ", option.least, " or more, got ",
              bytes::double_quoted(value));
  TORCH_CHECK(!huge && number <= option.most, "dba::zoo: option ", option.name, " of ", member.name,
              " must be at most ", option.most, ", got ", bytes::double_quoted(value));
}

OptionValues complete(const Member& member, const OptionValues& given) {
  std::vector<std::string> known;
  for (const auto& option : member.options) {
    known.push_back(option.name);
  }
  for (const auto& [name, value] : given) {
    TORCH_CHECK(
        std::find(known.begin(), known.end(), name) != known.end(), "dba::zoo: ", member.name,
        known.empty() ? " has no options of its own, got "
                      : " has the options " + std::string(c10::Join(", ", known)) + ", got ",
        bytes::double_quoted(name),
        member.capabilities.slots && name == "d_p" ? "; the number of slots is no option of one member but d_p of all: "
                                                     "DBAttentionOptions::d_p, or model.d_p in a configuration"
        : known.empty()                            ? ""
                        : "; the nearest known one is " + bytes::double_quoted(config::nearest_of(name, known)));
  }
  OptionValues values;
  for (const auto& option : member.options) {
    const auto found = given.find(option.name);
    TORCH_CHECK(found != given.end() || option.name != "max_length", "dba::zoo: ", member.name,
                " has parameters for every position: give the option max_length, the longest sequence");
    values[option.name] = found == given.end() ? option.fallback : found->second;
    check_value(member, option, values[option.name]);
  }
  return values;
}

/// The members join those that `make_attention` knows; softmax attention and DBA are there already.
[[maybe_unused]] const bool kRegistered = [] {
  for (const auto& member : members()) {
    if (member.name != "dba" && member.name != "softmax") {
      register_configured_attention(member.name,
                                    [name = member.name](const DBAttentionOptions& options, const std::string& text) {
                                      return make(name, options, parse_values(text));
                                    });
    }
  }
  return true;
}();

}  // namespace

std::string to_string(Growth growth) {
  switch (growth) {
    case Growth::linear:
      return "linear";
    case Growth::linearithmic:
      return "linearithmic";
    case Growth::sub_quadratic:
      return "sub-quadratic";
    case Growth::quadratic:
      break;
  }
  return "quadratic";
}

const std::vector<Member>& members() {
  static const std::vector<Member> all = {
      softmax_member(), dba_member(),          local_member(),     sparse_member(),   longformer_member(),
      bigbird_member(), linformer_member(),    reformer_member(),  sinkhorn_member(), synthesizer_member(),
      linear_member(),  performer_member(),    cosformer_member(), fnet_member(),     nystromformer_member(),
      yoso_member(),    scatterbrain_member(), pixelfly_member(),  luna_member(),     flowformer_member()};
  return all;
}

const Member& member(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& candidate : members()) {
    if (candidate.name == name) {
      return candidate;
    }
    known.push_back(candidate.name);
  }
  TORCH_CHECK(false, "dba::zoo: no member is called ", bytes::double_quoted(name), "; the nearest known one is ",
              bytes::double_quoted(config::nearest_of(name, known)), ", all are ", c10::Join(", ", known));
}

std::shared_ptr<torch::nn::Module> make(const std::string& name, const DBAttentionOptions& options,
                                        const OptionValues& values) {
  const auto& record = member(name);
  return record.build(options, complete(record, values));
}

OptionValues parse_values(const std::string& text) {
  OptionValues values;
  size_t begin = 0;
  while (begin < text.size()) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto part = text.substr(begin, end - begin);
    const auto equals = part.find('=');
    const auto name = trimmed(part.substr(0, equals));
    TORCH_CHECK(equals != std::string::npos && !name.empty(), "dba::zoo: options must be written name=value, with ",
                "commas between, got ", bytes::double_quoted(text));
    TORCH_CHECK(values.emplace(name, trimmed(part.substr(equals + 1))).second, "dba::zoo: option ", name,
                " is given twice in ", bytes::double_quoted(text));
    begin = end + 1;
  }
  return values;
}

}  // namespace dba::zoo
