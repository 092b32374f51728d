#include "ops/cpu/compress_tokens.h"
#include "ops/cpu/passes.h"
#include "ops/cpu/restore_tokens.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "ops/checks.h"

namespace dba::ops::cpu {
namespace {

template <class T>
reference::TokenGradients token_pass_as(const at::Tensor& x, const Sequences& sequences,
                                        const std::optional<reference::CompressBackward>& compress,
                                        const std::optional<reference::RestoreBackward>& restore) {
  const auto& k = kernels<T>();
  const TokenMatrix<T> tokens(x);
  const auto rows_of = [](const ScoreRows& rows) {
    return (rows.each.defined() ? rows.each.size(1) : 0) + (rows.shared.defined() ? rows.shared.size(0) : 0);
  };
  const WorkPlan plan(
      sequences.begin, sequences.end,
      ((compress ? rows_of(compress->rows) : 0) + (restore ? rows_of(restore->rows) : 0)) * tokens.width());
  auto dx = at::empty(x.sizes(), x.options());
  const TokenMatrix<T> out(dx);
  out.clear_rows_of_nobody(plan.begin, plan.end);
  std::optional<CompressTokens<T>> of_compress;
  std::optional<RestoreTokens<T>> of_restore;
  if (compress) {
    of_compress.emplace(k, *compress, plan, sequences.count());
  }
  if (restore) {
    of_restore.emplace(k, *restore, plan, sequences.count());
  }

  at::parallel_for(0, plan.units(), 1, [&](int64_t from, int64_t to) {
    Scratch scratch;
    const auto tile = scratch.panels(k, kTile, tokens.width());
    const auto gradient = scratch.panels(k, kTile, tokens.width());
    std::optional<typename CompressTokens<T>::Task> compress_task;
    std::optional<typename RestoreTokens<T>::Task> restore_task;
    if (of_compress) {
      compress_task.emplace(*of_compress, scratch);
    }
    if (of_restore) {
      restore_task.emplace(*of_restore, scratch);
    }
    for (auto unit = from; unit < to; ++unit) {
      const auto u = static_cast<size_t>(unit);
      for (auto i = plan.first_segment[u]; i < plan.first_segment[u + 1]; ++i) {
        const auto& segment = plan.segments[static_cast<size_t>(i)];
        if (compress_task) {
          compress_task->begin(segment, unit);
        }
        if (restore_task) {
          restore_task->begin(segment, unit);
        }
        for (int64_t first = 0; first < segment.tokens; first += kTile) {
          const auto count = std::min(kTile, segment.tokens - first);
          const auto row = segment.first_row + first;
          const auto target = out.target(k, row, gradient);
          tokens.load(k, row, count, tile);
          if (compress_task) {
            compress_task->add(first, count, fixed(tile), target, /*add=*/false);
          }
          if (restore_task) {
            restore_task->add(first, count, fixed(tile), target, /*add=*/compress_task.has_value());
          }
          out.store(k, row, count, fixed(target));
        }
        if (compress_task) {
          compress_task->finish();
        }
        if (restore_task) {
          restore_task->finish();
        }
      }
    }
  });
  reference::TokenGradients result;
  result.dx = dx;
  if (of_compress) {
    of_compress->put(result);
  }
  if (of_restore) {
    of_restore->put(result);
  }
  return result;
}

}  // namespace

reference::TokenGradients token_pass(const at::Tensor& x, const Sequences& sequences,
                                     const std::optional<reference::CompressBackward>& compress,
                                     const std::optional<reference::RestoreBackward>& restore) {
  return in_accumulation_type(accumulation_type(x.scalar_type()), [&](auto zero) {
    return token_pass_as<decltype(zero)>(x, sequences, compress, restore);
  });
}

}  // namespace dba::ops::cpu
