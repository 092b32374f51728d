#include "bench/method.h"

#include <ATen/Context.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "bench/split_methods.h"
#include "bytes/quote.h"
#include "config/keys.h"
#include "dba/nn/make_attention.h"
#include "dba/zoo.h"

namespace dba::bench {
namespace {

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream stream(name);
  for (std::string part; std::getline(stream, part, ':');) {
    parts.push_back(part);
  }
  return parts;
}

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

/// YOSO's chance itself, of all pairs: no hash, and no cost below n².
bool by_expectation(const Method& method) {
  return method.options.find("expectation") != std::string::npos;
}

bool set_backend_variant(Method& method, const std::string& variant) {
  if (variant != "auto" && variant != "reference" && variant != "fused") {
    return false;
  }
  method.backend = parse_backend(variant);
  return true;
}

bool set_dba_variant(Method& method, const std::string& variant) {
  if (variant == "paper" || variant == "released") {
    method.form = parse_form(variant);
  } else if (variant == "softmax" || variant == "linear") {
    method.normalise = parse_normalise(variant);
  } else if (variant == "two_pass" || variant == "direct") {
    method.order = variant == "direct" ? Order::direct : Order::two_pass;
  } else {
    return set_backend_variant(method, variant);
  }
  return true;
}

bool set_sdpa_variant(Method& method, const std::string& variant) {
  constexpr std::pair<const char*, Sdpa> kKnown[] = {
      {"flash", Sdpa::flash}, {"cudnn", Sdpa::cudnn}, {"efficient", Sdpa::efficient}, {"math", Sdpa::math}};
  for (const auto& [name, sdpa] : kKnown) {
    if (variant == name) {
      method.sdpa = sdpa;
      return true;
    }
  }
  return false;
}

/// Options that the attention does not have are an error of the list, not of the measurement.
void check_member_options(const Method& method) {
  try {
    constexpr int64_t kAnyLength = 1;
    check_attention(attention_text(method, kAnyLength));
  } catch (const c10::Error& error) {
    throw std::invalid_argument(error.what_without_backtrace());
  }
}

}  // namespace

const zoo::Member* member_of(const Method& method) {
  const auto& all = zoo::members();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& m) { return m.name == method.attention; });
  return found == all.end() ? nullptr : &*found;
}

std::vector<std::string> split_methods(const std::string& list) {
  std::vector<std::string> names(1);
  int depth = 0;
  for (const char c : list) {
    depth += (c == '(') - (c == ')');
    if (c == ',' && depth == 0) {
      names.emplace_back();
    } else if (c != ' ' || depth > 0) {
      names.back() += c;
    }
  }
  std::erase(names, "");
  return names;
}

std::string attention_text(const Method& method, int64_t longest) {
  auto options = method.options;
  const auto* member = member_of(method);
  if (member != nullptr && member->capabilities.needs_max_length &&
      zoo::parse_values(options).count("max_length") == 0) {
    options += (options.empty() ? "" : ", ") + ("max_length=" + std::to_string(longest));
  }
  return options.empty() ? method.attention : method.attention + "(" + options + ")";
}

Method parse_method(const std::string& name) {
  const auto open = name.find('('), close = name.rfind(')');
  if ((open == std::string::npos) != (close == std::string::npos) || (open != std::string::npos && close < open)) {
    throw std::invalid_argument("unknown method " + bytes::double_quoted(name) +
                                "; options stand in brackets behind the name, as in longformer(window=128, globals=2)");
  }
  const bool has_options = open != std::string::npos;
  const auto parts = parts_of(has_options ? name.substr(0, open) + name.substr(close + 1) : name);
  const auto known = attention_methods();
  if (parts.empty() || std::find(known.begin(), known.end(), parts[0]) == known.end()) {
    throw std::invalid_argument("unknown method " + bytes::double_quoted(name) + "; the nearest known one is " +
                                bytes::double_quoted(config::nearest_of(parts.empty() ? name : parts[0], known)) +
                                "; choose from " + listed(known) +
                                ", with options in brackets and variants behind colons, as in local(block=32), "
                                "dba:released or softmax:flash");
  }
  Method method;
  method.name = name;
  method.attention = parts[0];
  if (has_options) {
    method.options = name.substr(open + 1, close - open - 1);
    check_member_options(method);
  }
  const bool softmax = method.attention == "softmax";
  for (size_t i = 1; i < parts.size(); ++i) {
    const bool taken = method.is_dba() ? set_dba_variant(method, parts[i])
                       : softmax       ? set_sdpa_variant(method, parts[i])
                                       : set_backend_variant(method, parts[i]);
    if (!taken) {
      throw std::invalid_argument(
          "unknown variant " + bytes::double_quoted(parts[i]) + " of method " + method.attention + "; choose from " +
          (method.is_dba() ? "paper, released, softmax, linear, two_pass, direct, auto, reference, fused"
           : softmax       ? "flash, cudnn, efficient, math"
                           : "auto, reference, fused"));
    }
  }
  return method;
}

bool Method::of_zoo() const {
  return !is_dba() && attention != "softmax" && member_of(*this) != nullptr;
}

bool Method::hashes() const {
  const auto* member = member_of(*this);
  return member != nullptr && member->capabilities.hashes && !by_expectation(*this);
}

bool Method::sub_quadratic() const {
  const auto* member = member_of(*this);
  return member != nullptr && member->capabilities.growth != zoo::Growth::quadratic && !by_expectation(*this);
}

Method truth_of(const Method& method) {
  Method truth = method;
  truth.order = Order::two_pass;
  truth.backend = Backend::reference;
  truth.sdpa = Sdpa::math;
  return truth;
}

Method plain_of(const Method& method) {
  Method plain = truth_of(method);
  plain.order = Order::direct;
  if (method.of_zoo()) {
    plain.sdpa = method.sdpa;
  }
  return plain;
}

MethodScope::MethodScope(const Method& method) : backend_(method.backend) {
  auto& context = at::globalContext();
  flash_ = context.userEnabledFlashSDP();
  cudnn_ = context.userEnabledCuDNNSDP();
  efficient_ = context.userEnabledMemEfficientSDP();
  math_ = context.userEnabledMathSDP();
  if (method.sdpa != Sdpa::any) {
    context.setSDPUseFlash(method.sdpa == Sdpa::flash);
    context.setSDPUseCuDNN(method.sdpa == Sdpa::cudnn);
    context.setSDPUseMemEfficient(method.sdpa == Sdpa::efficient);
    context.setSDPUseMath(method.sdpa == Sdpa::math);
  }
}

MethodScope::~MethodScope() {
  auto& context = at::globalContext();
  context.setSDPUseFlash(flash_);
  context.setSDPUseCuDNN(cudnn_);
  context.setSDPUseMemEfficient(efficient_);
  context.setSDPUseMath(math_);
}

}  // namespace dba::bench
