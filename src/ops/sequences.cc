#include "dba/sequences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "ops/checks.h"
#include "ops/kept_tensors.h"

namespace dba {
namespace {

std::atomic<bool>& debug_flag() {
  static std::atomic<bool> flag{[] {
    const char* value = std::getenv("DBA_DEBUG");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }()};
  return flag;
}

at::Tensor as_indices(const at::Tensor& tensor, const char* function, const char* argument) {
  TORCH_CHECK(tensor.defined() && tensor.dim() == 1, "dba::", function, ": ", argument,
              " must be a tensor of one dimension, got ", ops::describe(tensor));
  TORCH_CHECK(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false), "dba::", function, ": ", argument,
              " must hold integers, got ", ops::describe(tensor));
  return tensor.to(at::kLong).contiguous();
}

}  // namespace

void set_debug_checks(bool on) {
  debug_flag().store(on);
}

bool debug_checks() {
  return debug_flag().load();
}

at::Tensor Sequences::lengths() const {
  return end - begin;
}

at::Tensor Sequences::sequence_of_row() const {
  const auto row = at::arange(rows, begin.options());
  if (count() == 0) {
    return at::full({rows}, -1, begin.options());
  }
  // The first sequence that ends after the row; empty sequences end before they could own one.
  const auto candidate = at::searchsorted(end, row, /*out_int32=*/false, /*right=*/true);
  const auto index = candidate.clamp_max(count() - 1);
  const auto inside = candidate.lt(count()).logical_and(row.ge(begin.index_select(0, index)));
  return at::where(inside, index, at::full({}, -1, begin.options()));
}

at::Tensor Sequences::position_of_row() const {
  if (count() == 0) {
    return at::zeros({rows}, begin.options());
  }
  const auto sequence = sequence_of_row();
  const auto position = at::arange(rows, begin.options()) - begin.index_select(0, sequence.clamp_min(0));
  return at::where(sequence.ge(0), position, at::zeros({}, begin.options()));
}

at::Tensor Sequences::row_mask() const {
  return sequence_of_row().ge(0);
}

int64_t Sequences::longest() const {
  if (max_length >= 0 || count() == 0) {
    return std::max<int64_t>(max_length, 0);
  }
  return lengths().max().item<int64_t>();
}

Sequences Sequences::dense(int64_t batch, int64_t length, at::Device device) {
  TORCH_CHECK(batch >= 0 && length >= 0, "dba::Sequences::dense: batch and length must not be negative, got ", batch,
              " and ", length);
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const auto bounds = ops::kept_tensors(ops::KeptKey{"dense", {batch, length}}, options, [&] {
    const auto begin = length == 0 ? at::zeros({batch}, options) : at::arange(0, batch * length, length, options);
    return std::vector{begin, begin + length};
  });
  return {bounds[0], bounds[1], batch * length, length, length, true};
}

Sequences Sequences::packed(const at::Tensor& cu_seqlens, int64_t rows, int64_t max_length) {
  const auto bounds = as_indices(cu_seqlens, "Sequences::packed", "cu_seqlens");
  TORCH_CHECK(bounds.size(0) >= 1, "dba::Sequences::packed: cu_seqlens must hold the B + 1 bounds of B sequences, got ",
              ops::describe(cu_seqlens));
  const auto count = bounds.size(0) - 1;
  Sequences result{bounds.narrow(0, 0, count), bounds.narrow(0, 1, count), rows, -1, max_length, true};
  ops::check_sequences("Sequences::packed", result, "cu_seqlens");
  return result;
}

Sequences Sequences::from_lengths(const at::Tensor& lengths, int64_t padded_length) {
  const auto values = as_indices(lengths, "Sequences::from_lengths", "lengths");
  if (ops::values_can_be_checked(values) && values.numel() > 0) {
    const auto smallest = values.min().item<int64_t>();
    const auto largest = values.max().item<int64_t>();
    TORCH_CHECK(smallest >= 0, "dba::Sequences::from_lengths: lengths must not be negative, got ", smallest);
    TORCH_CHECK(largest <= padded_length, "dba::Sequences::from_lengths: lengths must be at most the batch's length ",
                padded_length, ", got ", largest);
  }
  const auto begin = at::arange(values.size(0), values.options()) * padded_length;
  return {begin, begin + values, values.size(0) * padded_length, padded_length, padded_length, false};
}

Sequences Sequences::from_mask(const at::Tensor& mask) {
  TORCH_CHECK(mask.defined() && mask.dim() == 2 && mask.scalar_type() == at::kBool,
              "dba::Sequences::from_mask: mask must be boolean of shape (B, n), true where a token is real, got ",
              ops::describe(mask));
  const auto batch = mask.size(0);
  const auto length = mask.size(1);
  if (batch == 0 || length == 0) {
    return dense(batch, length, mask.device());
  }
  const auto real = mask.to(at::kLong);
  const auto lengths = real.sum(1);
  const auto first = real.argmax(1);
  const auto position = at::arange(length, real.options()).unsqueeze(0);
  const auto inside = position.ge(first.unsqueeze(1)).logical_and(position.lt((first + lengths).unsqueeze(1)));
  const auto contiguous = at::all(inside.eq(mask));
  const char* const refusal =
      "dba::Sequences::from_mask: the real tokens of a sequence must be contiguous, got a mask with holes; "
      "gather the real tokens of each sequence first";
  if (mask.is_cpu()) {
    TORCH_CHECK(contiguous.item<bool>(), refusal);
  } else if (!mask.is_meta()) {
    at::_assert_async(contiguous, refusal);
  }
  const auto begin = at::arange(batch, real.options()) * length + first;
  return {begin, begin + lengths, batch * length, length, length, false};
}

Sequences Sequences::ranges(const at::Tensor& begin, const at::Tensor& end, int64_t rows) {
  Sequences result{as_indices(begin, "Sequences::ranges", "begin"),
                   as_indices(end, "Sequences::ranges", "end"),
                   rows,
                   -1,
                   -1,
                   false};
  ops::check_sequences("Sequences::ranges", result);
  return result;
}

}  // namespace dba
