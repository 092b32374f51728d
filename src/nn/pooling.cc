#include "dba/nn/pooling.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "dba/ops.h"
#include "nn/named_choice.h"
#include "nn/padded.h"
#include "nn/rows.h"
#include "ops/checks.h"

namespace dba {
namespace {

constexpr NamedChoice<Pool> kPools[] = {{"first", Pool::first}, {"mean", Pool::mean}, {"flatten", Pool::flatten}};

/// The first `length` tokens of every sequence, zeros behind its end: (B, length, d).
at::Tensor first_tokens(const at::Tensor& rows, const Sequences& sequences, int64_t length) {
  if (is_plain(sequences)) {
    const auto batch = rows.view({sequences.count(), sequences.padded_length, rows.size(1)});
    const auto missing = length - sequences.padded_length;
    return missing > 0 ? at::constant_pad_nd(batch, {0, 0, 0, missing}) : batch.narrow(1, 0, length);
  }
  // Without a single row there would be nothing to point at.
  const auto source = rows.size(0) > 0 ? rows : at::cat({rows, at::zeros({1, rows.size(1)}, rows.options())});
  const auto index = sequences.begin.unsqueeze(1) + at::arange(length, sequences.begin.options());
  const auto real = index.lt(sequences.end.unsqueeze(1)).view(-1);
  const auto token = source.index_select(0, index.view(-1).clamp_max(source.size(0) - 1));
  return clear_rows(token, real).view({sequences.count(), length, rows.size(1)});
}

/// The mean is `compress` with one row whose score is 1 for every token: the same sums, and the same treatment of empty
/// sequences.
at::Tensor mean(const at::Tensor& rows, const Sequences& sequences) {
  ops::ScoreRows score;
  score.shared = at::zeros({1, rows.size(1)}, rows.options());
  score.shared_bias = at::ones({1}, rows.options());
  score.linear = 1;
  return ops::compress(rows, sequences, score).c.squeeze(1).to(rows.scalar_type());
}

}  // namespace

Pool parse_pool(const std::string& name) {
  return parse_choice("parse_pool", name, kPools);
}

std::string to_string(Pool pool) {
  return name_of(pool, kPools);
}

PoolingImpl::PoolingImpl(PoolingOptions options_) : options(std::move(options_)) {
  PoolingImpl::reset();
}

void PoolingImpl::reset() {
  check_positive("Pooling", "d", options.d());
  TORCH_CHECK(options.kind() != Pool::flatten || options.max_length() > 0,
              "dba::Pooling: flatten needs a positive max_length, got ", options.max_length(),
              "; give the length of the longest sequence, or pool by mean");
}

void PoolingImpl::pretty_print(std::ostream& stream) const {
  stream << "dba::Pooling(" << to_string(options.kind());
  if (options.kind() == Pool::flatten) {
    stream << ", max_length=" << options.max_length();
  }
  stream << ")";
}

int64_t PoolingImpl::width() const {
  return options.kind() == Pool::flatten ? options.max_length() * options.d() : options.d();
}

at::Tensor PoolingImpl::forward(const at::Tensor& x, const Sequences& sequences) {
  const auto rows = as_rows("Pooling::forward", "x", x, sequences, options.d());
  switch (options.kind()) {
    case Pool::first:
      return first_tokens(rows, sequences, 1).squeeze(1);
    case Pool::mean:
      return mean(rows, sequences);
    case Pool::flatten:
      break;
  }
  if (ops::values_can_be_checked(sequences.begin) && sequences.count() > 0) {
    const auto longest = sequences.lengths().max().item<int64_t>();
    TORCH_CHECK(longest <= options.max_length(), "dba::Pooling::forward: sequences must have at most ",
                options.max_length(), " tokens (max_length) to be flattened, got ", longest,
                "; cut the sequences, enlarge max_length or pool by mean");
  }
  return first_tokens(rows, sequences, options.max_length()).reshape({sequences.count(), width()});
}

}  // namespace dba
