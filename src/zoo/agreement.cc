#include "zoo/agreement.h"

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <array>

#include "ops/arguments.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// Keys at once: a number that the compiler knows, so that the counts stay in vector registers.
constexpr int64_t kTile = 64;

template <typename Number>
void count_row(const int16_t* query, const int16_t* keys, int64_t hashes, int64_t m, Number* out) {
  int64_t first = 0;
  for (; first + kTile <= m; first += kTile) {
    std::array<uint16_t, kTile> counts{};
    for (int64_t h = 0; h < hashes; ++h) {
      const auto* codes = keys + h * m + first;
      const auto wanted = query[h];
      for (int64_t j = 0; j < kTile; ++j) {
        counts[j] = static_cast<uint16_t>(counts[j] + (codes[j] == wanted));
      }
    }
    for (int64_t j = 0; j < kTile; ++j) {
      out[first + j] = static_cast<Number>(counts[j]);
    }
  }
  for (; first < m; ++first) {
    int64_t count = 0;
    for (int64_t h = 0; h < hashes; ++h) {
      count += keys[h * m + first] == query[h];
    }
    out[first] = static_cast<Number>(count);
  }
}

Tensor agreement_cpu(const Tensor& code_q, const Tensor& code_k, at::ScalarType type) {
  check_codes(code_q, code_k);
  const auto n = code_q.size(1), hashes = code_q.size(2), m = code_k.size(2);
  const auto q = code_q.contiguous(), k = code_k.contiguous();
  auto counts = torch::empty({q.size(0), n, m}, q.options().dtype(type == at::kDouble ? type : at::kFloat));
  AT_DISPATCH_FLOATING_TYPES(counts.scalar_type(), "code_agreement", [&] {
    at::parallel_for(0, q.size(0) * n, /*grain_size=*/16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        count_row(q.const_data_ptr<int16_t>() + row * hashes, k.const_data_ptr<int16_t>() + row / n * hashes * m,
                  hashes, m, counts.mutable_data_ptr<scalar_t>() + row * m);
      }
    });
  });
  return counts.to(type);
}

TORCH_LIBRARY_FRAGMENT(dba, m) {
  m.def("code_agreement(Tensor code_q, Tensor code_k, ScalarType dtype) -> Tensor");
}

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("code_agreement", agreement_cpu);
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("code_agreement", agreement_composed);
}

}  // namespace

void check_codes(const Tensor& code_q, const Tensor& code_k) {
  TORCH_CHECK(code_q.scalar_type() == at::kShort && code_k.scalar_type() == at::kShort,
              "dba::code_agreement: codes must be int16, got ", code_q.scalar_type(), " and ", code_k.scalar_type());
  TORCH_CHECK(
      code_q.dim() == 3 && code_k.dim() == 3 && code_q.size(0) == code_k.size(0) && code_q.size(2) == code_k.size(1),
      "dba::code_agreement: codes must be (G, n, hashes) and (G, hashes, m), got ", code_q.sizes(), " and ",
      code_k.sizes());
  TORCH_CHECK(code_q.size(2) <= kMostHashes, "dba::code_agreement: there may be at most ", kMostHashes,
              " hashes, which are counted in 16 bits, got ", code_q.size(2));
}

Tensor agreement_composed(const Tensor& code_q, const Tensor& code_k, at::ScalarType type) {
  auto counts = torch::zeros({code_q.size(0), code_q.size(1), code_k.size(2)}, code_q.options());
  for (int64_t h = 0; h < code_q.size(2); ++h) {
    counts += code_q.select(2, h).unsqueeze(2).eq(code_k.select(1, h).unsqueeze(1));
  }
  return counts.to(type);
}

Tensor agreement(const Tensor& code_q, const Tensor& code_k, at::ScalarType type) {
  static const auto operation =
      ops::typed_operator<Tensor(const Tensor&, const Tensor&, at::ScalarType)>("dba::code_agreement");
  return operation.call(code_q, code_k, type);
}

}  // namespace dba::zoo
