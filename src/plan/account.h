#pragma once

#include <algorithm>
#include <cmath>

#include "plan/balance.h"
#include "plan/cost.h"
#include "plan/fused_range.h"

namespace dba::plan {

enum Unit : std::size_t { kOperations, kExponentials, kBytes, kCalls, kSequences };

/// Products are computed in whole registers (CPU) or tiles (GPU) of this many columns.
inline double lanes_of(const Shape& shape) {
  if (shape.device == at::kCPU) {
    return shape.dtype == at::kDouble ? 8 : 16;
  }
  return in_hopper_range(shape) ? 64 : 16;
}

/// Sizes as real numbers: products of them outgrow integers.
struct Numbers {
  explicit Numbers(const Shape& s)
      : released(s.form == Form::released),
        training(s.training),
        cpu(s.device == at::kCPU),
        threads(cpu ? std::max<int64_t>(s.threads, 1) : 1),
        N(static_cast<double>(s.tokens)),
        B(static_cast<double>(s.batch)),
        n(static_cast<double>(std::max<int64_t>(s.length(), 1))),
        d(static_cast<double>(s.d)),
        H(static_cast<double>(s.heads)),
        d_p(static_cast<double>(s.d_p)),
        e(static_cast<double>(s.e)),
        d_h(d / H),
        slots(H * d_p),
        rows(released ? slots : 3 * slots),
        element(static_cast<double>(c10::elementSize(s.autocast ? at::kBFloat16 : s.dtype))),
        wide(std::max(element, 4.0)),
        z_count(s.slots_per_sequence ? B : std::min(B, 1.0)),
        lanes(lanes_of(s)) {}

  double padded(double width) const {
    return std::ceil(width / lanes) * lanes;
  }
  /// What a product of this many columns costs in columns: the CPU's blocks are four vectors wide, and a narrower one
  /// loads as many entries of the left factor.
  double columns(double width) const {
    constexpr double kOfNarrowBlock = 0.4;  // vectors
    const double rest = std::fmod(width, 4 * lanes);
    return padded(width) + (cpu && rest > 0 && rest <= 3 * lanes ? kOfNarrowBlock * lanes : 0);
  }
  /// What a sum of this many products costs in products: it is stored, and perhaps added to another.
  double terms(double count) const {
    constexpr double kOfStore = 4;
    return count + (cpu ? kOfStore : 0);
  }
  /// The CPU's kernels copy tokens whose width is no whole number of vectors; what is left over goes number by number.
  double copied(double tokens, double width) const {
    return cpu ? tokens * lanes * 2 * std::fmod(width, lanes) : 0;
  }
  Balance balance(double sequences, double tokens, double sums_per_unit) const {
    if (!cpu || sequences < 1) {
      return {};
    }
    const auto length = static_cast<int64_t>(std::ceil(tokens / sequences));
    return balance_of_pass(static_cast<int64_t>(sequences), length, threads, static_cast<int64_t>(sums_per_unit));
  }

  Balance of_stacks(const Balance& of_units) const {
    return balance_of_stacks(of_units, static_cast<int64_t>(B), static_cast<int64_t>(d_p), threads);
  }

  bool released, training, cpu;
  int64_t threads;
  double N, B, n, d, H, d_p, e, d_h, slots, rows, element, wide, z_count, lanes;
};

/// Adds up the work of one candidate.
class Account {
 public:
  explicit Account(const Numbers& sizes) : s_(sizes) {}

  /// `multiply_adds` as counted, `computed` as the registers make them.
  void products(Engine engine, double multiply_adds, double computed) {
    cost.operations += 2 * multiply_adds;
    at(engine, kOperations) += 2 * computed;
  }
  void traffic(Engine engine, double bytes) {
    cost.bytes += bytes;
    at(engine, kBytes) += bytes;
  }
  /// Work that the threads share, and that lasts as long as the longest share.
  void spread(Engine engine, double waiting, const Units& work) {
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      at(engine, static_cast<Unit>(unit)) += waiting * work[unit];
    }
  }
  /// Tensors as long as the sequences, read or written by such work.
  void stream(Engine engine, double waiting, double bytes) {
    cost.bytes += bytes;
    at(engine, kBytes) += waiting * bytes;
  }
  double& at(Engine engine, Unit unit) {
    return cost.tally[static_cast<std::size_t>(engine)][unit];
  }

  /// One streaming kernel over `tokens` of `width` in `sequences` with `rows` score rows, shared or of each sequence:
  /// that many products each way. `in_cache`: summaries go from step to step there; `kept`: backward finds scores or
  /// weights as the forward made them.
  struct Pass {
    double tokens, sequences, width, rows;
    bool restore = false, each = false, in_cache = false, kept = false;
  };
  void pass(const Pass& p) {
    const double one = p.tokens * p.width * p.rows;
    // Scores have the rows as their columns; sums, outputs and gradients the width.
    const double scores = p.tokens * (s_.cpu ? s_.terms(p.width) : s_.padded(p.width)) * s_.columns(p.rows);
    // The others are sums over the tokens of a tile; restore's outputs, over slots, are no shorter.
    constexpr double kTile = 96;
    const double tile = std::clamp(p.tokens / std::max(p.sequences, 1.0), 1.0, kTile);
    const double over_tokens = p.tokens * p.rows * s_.columns(p.width) * s_.terms(tile) / tile;
    const double others = s_.cpu ? over_tokens : scores;
    const double copied = s_.copied(p.tokens, p.width);
    const double row_bytes = p.rows * p.width * s_.wide;
    const double summaries = p.restore || p.in_cache ? 0 : p.sequences * row_bytes;
    const auto of_units = s_.balance(p.sequences, p.tokens, 0);
    const auto balance = p.in_cache ? s_.of_stacks(of_units) : of_units;
    spread(Engine::passes, balance.waiting,
           {2 * (scores + others + copied), p.tokens * p.rows, s_.cpu ? summaries : 0, 0, p.sequences});
    cost.operations += 4 * one;
    at(Engine::passes, kCalls) += 1;
    stream(Engine::passes, balance.waiting, p.tokens * s_.element * (p.restore ? 2 : 1) * p.width);
    if (s_.cpu) {
      // Shared rows are packed by one thread, while the others wait.
      at(Engine::core, kBytes) += 2 * row_bytes * (p.each ? p.sequences : static_cast<double>(s_.threads));
    }
    if (!s_.training) {
      return;
    }
    // restore: U twice unless it is kept, dM, dU, its share of dX, dF; compress: W unless its scores are, dC Xᵀ, two
    // shares of dX, dA.
    const auto back = s_.balance(p.sequences, p.tokens, p.rows * p.width);
    const double computed = (p.kept ? 1 : 2) * scores + (p.restore && !p.kept ? 4 : 3) * others + 2 * copied;
    spread(
        Engine::backward_passes, back.waiting,
        {2 * computed, p.tokens * p.rows * (p.restore && !p.kept ? 2 : 1), s_.cpu ? 3 * summaries : 0, 0, p.sequences});
    cost.operations += 2 * one * (p.restore ? 6 : 5);
    at(Engine::backward_passes, kCalls) += 1;
    stream(Engine::backward_passes, back.waiting, p.tokens * s_.element * (p.restore ? 3 : 2) * p.width);
    if (s_.cpu) {
      const double packed = 2 * (p.restore ? 2 : 1) * static_cast<double>(s_.threads);
      at(Engine::backward_core, kBytes) +=
          row_bytes * (p.each ? 4 * p.sequences : packed + 2 * back.waiting * static_cast<double>(back.units));
    }
  }

  /// Plain operations of the forward pass; autograd adds twice the products and traffic. Its calls are many more: it
  /// records every operation, takes most of them back by two or three, and adds gradients up.
  void plain(double multiply_adds, double bytes, double exponentials, double calls) {
    constexpr double kCallsInTraining = 6;  // for one of the forward pass, measured where there is little else
    const double passes = s_.training ? 3 : 1;
    products(Engine::plain, passes * multiply_adds, passes * multiply_adds);
    at(Engine::plain, kExponentials) += exponentials * (s_.training ? 2 : 1);
    at(Engine::plain, kCalls) += (s_.training ? kCallsInTraining : 1) * calls;
    traffic(Engine::plain, passes * bytes);
  }

  /// Matrices that plain products read, and in training their gradients: of note on a CPU where tokens are few.
  void weights(double numbers) {
    at(Engine::plain, kBytes) += s_.cpu ? (s_.training ? 3 : 1) * s_.element * numbers : 0;
  }

  Cost cost;

 private:
  const Numbers& s_;
};

}  // namespace dba::plan
