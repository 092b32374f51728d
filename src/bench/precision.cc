#include "bench/precision.h"

#include <stdexcept>

#include "bytes/quote.h"

namespace dba::bench {
namespace {

struct Named {
  const char* name;
  Precision precision;
  at::ScalarType storage;
  at::ScalarType compute;
};

constexpr Named kPrecisions[] = {{"float32", Precision::float32, at::kFloat, at::kFloat},
                                 {"float64", Precision::float64, at::kDouble, at::kDouble},
                                 {"bfloat16", Precision::bfloat16, at::kBFloat16, at::kBFloat16},
                                 {"float16", Precision::float16, at::kHalf, at::kHalf},
                                 {"autocast", Precision::autocast, at::kFloat, at::kBFloat16}};

const Named& entry(Precision precision) {
  return kPrecisions[static_cast<size_t>(precision)];
}

}  // namespace

Precision parse_precision(const std::string& name) {
  for (const auto& known : kPrecisions) {
    if (name == known.name) {
      return known.precision;
    }
  }
  throw std::invalid_argument("unknown dtype " + bytes::double_quoted(name) +
                              "; choose from float32, float64, bfloat16, float16, autocast");
}

std::string to_string(Precision precision) {
  return entry(precision).name;
}

at::ScalarType storage_type(Precision precision) {
  return entry(precision).storage;
}

at::ScalarType compute_type(Precision precision) {
  return entry(precision).compute;
}

}  // namespace dba::bench
