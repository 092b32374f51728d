#include "bench/method.h"

#include <ATen/Context.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "bytes/quote.h"
#include "dba/nn/make_attention.h"

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

}  // namespace

Method parse_method(const std::string& name) {
  const auto parts = parts_of(name);
  const auto known = attention_methods();
  if (parts.empty() || std::find(known.begin(), known.end(), parts[0]) == known.end()) {
    throw std::invalid_argument("unknown method " + bytes::double_quoted(name) + "; choose from " + listed(known) +
                                ", with variants behind colons as in dba:released or softmax:flash");
  }
  Method method;
  method.name = name;
  method.attention = parts[0];
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
