#include "zoo/sums_beyond.h"

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>

#include "ops/arguments.h"

namespace dba::zoo {
namespace {

using at::Tensor;

constexpr int64_t kColumns = 64;  // of a running sum: registers, and a count that the compiler knows

void add_columns(float* __restrict sum, const float* __restrict more, int64_t columns) {
  if (columns == kColumns) {
    for (int64_t column = 0; column < kColumns; ++column) {
      sum[column] += more[column];
    }
    return;
  }
  for (int64_t column = 0; column < columns; ++column) {
    sum[column] += more[column];
  }
}

/// In two passes over x.
Tensor floats_beyond(const Tensor& given, int64_t before, int64_t after) {
  const auto x = given.contiguous();
  auto sums = torch::empty_like(x);
  const auto rows = x.size(1), width = x.size(2) * x.size(3), parts = (width + kColumns - 1) / kColumns;
  const auto* from = x.const_data_ptr<float>();
  auto* into = sums.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0) * parts, 1, [&](int64_t begin, int64_t end) {
    std::array<float, kColumns> running;
    for (int64_t i = begin; i < end; ++i) {
      const auto first = i / parts * rows * width + i % parts * kColumns;
      const auto columns = std::min(kColumns, width - i % parts * kColumns);
      running.fill(0);
      for (int64_t row = 0; row < rows; ++row) {
        if (row >= before) {
          add_columns(running.data(), from + first + (row - before) * width, columns);
        }
        std::copy_n(running.begin(), columns, into + first + row * width);
      }
      running.fill(0);
      for (int64_t row = rows - after - 1; row >= 0; --row) {
        add_columns(running.data(), from + first + (row + after) * width, columns);
        add_columns(into + first + row * width, running.data(), columns);
      }
    }
  });
  return sums;
}

/// x (c, rows, width) summed up over all rows before each, or behind it, and itself: by products with zeros and ones,
/// in groups of rows and over the groups. PyTorch's own sums of that kind have no repeatable order on a GPU.
Tensor running_sums(const Tensor& x, bool from_the_end) {
  constexpr int64_t kGroup = 64;
  const auto rows = x.size(1), groups = (rows + kGroup - 1) / kGroup;
  const auto in_groups = at::constant_pad_nd(x, {0, 0, 0, groups * kGroup - rows}).unflatten(1, {groups, kGroup});
  const auto others = [&](int64_t count, int64_t nearest) {  // (count, count): which rows a row sums up
    const auto ones = torch::ones({count, count}, x.options());
    return from_the_end ? ones.triu(nearest) : ones.tril(-nearest);
  };
  const auto inside = torch::matmul(others(kGroup, 0), in_groups);  // (c, groups, kGroup, width)
  const auto totals = inside.select(2, from_the_end ? 0 : kGroup - 1);
  const auto outside = torch::matmul(others(groups, 1), totals);
  return (inside + outside.unsqueeze(2)).flatten(1, 2).narrow(1, 0, rows);
}

Tensor sums_beyond_cpu(const Tensor& x, int64_t before, int64_t after) {
  check_sums_beyond(x, before, after);
  return x.scalar_type() == at::kFloat ? floats_beyond(x, before, after) : sums_beyond_composed(x, before, after);
}

TORCH_LIBRARY_FRAGMENT(dba, m) {
  m.def("sums_beyond(Tensor x, int before, int after) -> Tensor");
}

TORCH_LIBRARY_IMPL(dba, CPU, m) {
  m.impl("sums_beyond", sums_beyond_cpu);
}

TORCH_LIBRARY_IMPL(dba, CompositeExplicitAutograd, m) {
  m.impl("sums_beyond", sums_beyond_composed);
}

}  // namespace

void check_sums_beyond(const Tensor& x, int64_t before, int64_t after) {
  TORCH_CHECK(x.dim() == 4, "dba::sums_beyond: x must be (c, rows, a, b), got ", x.sizes());
  TORCH_CHECK(before >= 0 && after >= 0, "dba::sums_beyond: before and after must be at least 0, got ", before, " and ",
              after);
}

Tensor sums_beyond_composed(const Tensor& x, int64_t before, int64_t after) {
  const auto rows = x.size(1);
  auto sums = torch::zeros(x.sizes(), x.options());
  if (before < rows) {
    sums.narrow(1, before, rows - before)
        .flatten(2)
        .copy_(running_sums(x.narrow(1, 0, rows - before).flatten(2), /*from_the_end=*/false));
  }
  if (after < rows) {
    sums.narrow(1, 0, rows - after)
        .flatten(2)
        .add_(running_sums(x.narrow(1, after, rows - after).flatten(2), /*from_the_end=*/true));
  }
  return sums;
}

Tensor sums_beyond(const Tensor& x, int64_t before, int64_t after) {
  static const auto operation = ops::typed_operator<Tensor(const Tensor&, int64_t, int64_t)>("dba::sums_beyond");
  return operation.call(x, before, after);
}

}  // namespace dba::zoo
