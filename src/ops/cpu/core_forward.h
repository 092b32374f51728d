#pragma once

#include <cmath>

#include "ops/cpu/core_weights.h"
#include "ops/cpu/mask_source.h"

namespace dba::ops::cpu {

constexpr double kLayerNormEps = 1e-5;

/// The core of some stacked sequences, with everything that its gradient needs again. R is their number times d_p.
template <class T>
class CoreForward {
 public:
  /// `backward`: the summaries are kept stacked too.
  CoreForward(const Kernels<T>& kernels, const PackedCore<T>& core, const MaskSource<T>& masks, int64_t sequences,
              bool backward)
      : k(kernels), core(core), masks(masks), capacity(sequences * core.d_p) {
    const auto matrix = [&](int64_t columns) { return scratch.panels(k, capacity, columns); };
    const auto per_head = [&](int64_t columns) {
      std::vector<Panels<T>> heads;
      for (int64_t head = 0; head < core.heads; ++head) {
        heads.push_back(matrix(columns));
      }
      return heads;
    };
    for (int64_t group = 0; backward && group < core.groups; ++group) {
      summaries.push_back(per_head(core.d));
    }
    factors = scratch.take<T>(backward ? core.groups * core.heads * capacity : 0);
    lifted = per_head(core.first.width());
    if (core.from_source()) {
      source = matrix(core.key.inputs() + 1);
    }
    if (core.released) {
      query_input = matrix(core.query.inputs() + 1);
      queries = per_head(core.query.width());
      centred = scratch.take<T>(capacity * core.heads * core.value.width());
      rstd = scratch.take<T>(capacity);
      normed = per_head(core.value.width());
    }
    keys = per_head(core.key.width());
    values = per_head(core.value.width());
    q = core.has_width ? per_head(core.e) : query_heads();
    k_narrow = core.has_width ? per_head(core.e) : keys;
    p = per_head(core.d_p);
    dropped = masks.active() ? per_head(core.d_p) : p;
    mask = masks.active() ? per_head(core.d_p) : std::vector<Panels<T>>(static_cast<size_t>(core.heads));
    mixed = per_head(core.value.width());
    joined = scratch.take<T>(capacity * core.heads * std::max({core.first.width(), core.value.width()}));
    transposed = scratch.panels(k, std::max({core.e, core.value.width(), core.d_p}), core.d_p);
    drawn = scratch.panels(k, (core.d_p + 3) / 4 * 4, masks.active() ? core.d_p : 0);
    no_bias = scratch.template zeros<T>(padded_columns(k, core.d_p));
    ones = scratch.template take<T>(capacity);
    std::fill_n(ones, capacity, T(1));
    scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(core.e)));
  }

  /// c (sequences, L, d) and r (sequences, L) of the sequences from `first_sequence` on; their projections, where they
  /// were kept.
  void run(const T* c, const T* r, int64_t first_sequence, int64_t sequences, const T* projections = nullptr) {
    count = sequences;
    kept_ = projections;
    rows = sequences * core.d_p;
    c_ = c;
    r_ = r;
    first_ = first_sequence;
    for (int64_t head = 0; head < core.heads; ++head) {
      lift(0, head, core.first, lifted);
    }
    load_source();
    for (int64_t head = 0; head < core.heads; ++head) {
      project(head, core.key, 1, keys);
      project(head, core.value, 2, values);
      narrow(head);
      for (int64_t i = 0; i < sequences; ++i) {
        attend(head, i, first_sequence + i);
      }
    }
    if (core.released) {
      normalise();
    }
  }

  /// Row-major (R, H·w) from the matrices of the heads.
  void join(const std::vector<Panels<T>>& heads, int64_t width, T* to) const {
    for (int64_t head = 0; head < core.heads; ++head) {
      k.unpack(fixed(heads[static_cast<size_t>(head)]), nullptr, to + head * width, core.heads * width, rows, width);
    }
  }
  void split(const T* from, int64_t width, const std::vector<Panels<T>>& heads) const {
    for (int64_t head = 0; head < core.heads; ++head) {
      k.pack(from + head * width, core.heads * width, heads[static_cast<size_t>(head)], rows, width);
    }
  }
  const std::vector<Panels<T>>& query_heads() const {
    return core.released ? queries : lifted;
  }
  const std::vector<Panels<T>>& output_heads() const {
    return core.released ? normed : mixed;
  }
  /// What head `head` of the keys (group 1) or values (group 2) is projected from.
  Panels<const T> input(int64_t group, int64_t head) const {
    return core.from_source() ? fixed(source) : summary(group, head);
  }
  /// What its bias is multiplied with, for every row.
  const T* bias_factors(int64_t group, int64_t head) const {
    return core.from_source() ? ones : summary_sums(group, head);
  }
  /// For backward, the summaries of a head (R × d) and their r (R).
  Panels<const T> summary(int64_t group, int64_t head) const {
    return in_place() ? Panels<const T>{c_ + summary_row(group, head, 0) * core.d, k.panel, core.d}
                      : fixed(summaries[static_cast<size_t>(group)][static_cast<size_t>(head)]);
  }
  const T* summary_sums(int64_t group, int64_t head) const {
    return factors + (group * core.heads + head) * capacity;
  }
  Panels<T> of_sequence(Panels<T> stacked, int64_t i) const {
    return from_row(stacked, i * core.d_p);
  }
  /// The transposed (columns × d_p) of one sequence's rows, until the next call.
  Panels<const T> transpose(Panels<T> from, int64_t columns) const {
    for (int64_t j = 0; j < columns; j += k.panel) {
      k.pack_transposed(from.entries + j / k.panel * from.stride, k.panel, from_row(transposed, j), core.d_p,
                        std::min(k.panel, columns - j));
    }
    return fixed(transposed);
  }
  T& entry(Panels<T> matrix, int64_t row, int64_t column) const {
    return matrix.entries[column / k.panel * matrix.stride + row * k.panel + column % k.panel];
  }

  const Kernels<T>& k;
  const PackedCore<T>& core;
  const MaskSource<T>& masks;
  Scratch scratch;
  int64_t capacity, rows = 0, count = 0;
  std::vector<std::vector<Panels<T>>> summaries;  // for backward, by group and head: (R × d)
  Panels<T> source{}, query_input{};              // (R × ·), 1 in the last column
  std::vector<Panels<T>> lifted, queries, keys, values, q, k_narrow, p, mask, dropped, mixed, normed;
  T *joined, *centred = nullptr, *rstd = nullptr;  // centred: (R, H·g) the mixed rows as LayerNorm scales them
  Panels<T> transposed, drawn;
  T *no_bias, *ones, *factors;
  T scale;

 private:
  const T *c_ = nullptr, *r_ = nullptr, *kept_ = nullptr;
  int64_t first_ = 0;

  /// The first of d_p rows of summaries.
  int64_t summary_row(int64_t group, int64_t head, int64_t i) const {
    return ((i * core.groups + group) * core.heads + head) * core.d_p;
  }

  /// Whether products find the summaries of a head's rows where they are.
  bool in_place() const {
    return count == 1 && core.d % k.lanes == 0;
  }

  /// The summaries that are lifted after those of a head: in backward they come from far away.
  Ahead after(int64_t group, int64_t head, int64_t i) const {
    const bool last = head + 1 == core.heads;
    if (summaries.empty() || (last && group + 1 == core.groups)) {
      return {};
    }
    // Keys and values take turns.
    const auto next = group == 0 ? (last ? summary_row(1, 0, i) : summary_row(0, head + 1, i))
                                 : (group == 1 ? summary_row(2, head, i) : summary_row(1, head + 1, i));
    return {c_ + next * core.d, core.d_p * core.d * static_cast<int64_t>(sizeof(T))};
  }

  /// Summaries are read where they lie, and stacked for backward.
  void lift(int64_t group, int64_t head, const HeadLinear<T>& linear, const std::vector<Panels<T>>& to) {
    const auto weight = linear.transposed(head);
    for (int64_t i = 0; i < count; ++i) {
      const auto from = summary_row(group, head, i);
      const auto place = of_sequence(to[static_cast<size_t>(head)], i);
      if (kept_ != nullptr) {
        k.pack(kept_ + i * core.d_p * core.projected_width() + core.projected_column(group, head),
               core.projected_width(), place, core.d_p, linear.width());
      } else {
        k.multiply_ahead({c_ + from * core.d, k.panel, core.d}, weight, place, core.d_p, linear.width(), core.d,
                         /*add=*/false, after(group, head, i));
        if (linear.has_bias()) {
          k.multiply({r_ + from, k.panel, 1}, from_row(weight, core.d), place, core.d_p, linear.width(), 1,
                     /*add=*/true);
        }
      }
      if (!summaries.empty()) {
        std::copy_n(r_ + from, core.d_p, factors + (group * core.heads + head) * capacity + i * core.d_p);
        if (!in_place()) {
          const auto all = summaries[static_cast<size_t>(group)][static_cast<size_t>(head)];
          k.pack(c_ + from * core.d, core.d, of_sequence(all, i), core.d_p, core.d);
        }
      }
    }
  }

  void load_source() {
    if (!core.from_source()) {
      return;
    }
    const auto put = [&](const T* from, int64_t width, Panels<T> to) {
      k.pack(from, width, to, rows, width);
      for (int64_t i = 0; i < rows; ++i) {
        entry(to, i, width) = T(1);
      }
    };
    if (core.released) {
      join(lifted, core.first.width(), joined);
      put(joined, core.query.inputs(), query_input);
      for (int64_t head = 0; head < core.heads; ++head) {
        k.multiply(fixed(query_input), core.query.transposed(head), queries[static_cast<size_t>(head)], rows,
                   core.query.width(), core.query.extended_inputs(), /*add=*/false);
      }
    }
    const auto width = core.key.inputs();
    put(core.cross ? core.other.template const_data_ptr<T>() + first_ * core.d_p * width : joined, width, source);
  }

  void project(int64_t head, const HeadLinear<T>& linear, int64_t group, const std::vector<Panels<T>>& to) {
    if (core.from_source()) {
      k.multiply(fixed(source), linear.transposed(head), to[static_cast<size_t>(head)], rows, linear.width(),
                 linear.extended_inputs(), /*add=*/false);
    } else {
      lift(group, head, linear, to);
    }
  }

  void narrow(int64_t head) {
    if (!core.has_width) {
      return;
    }
    const auto h = static_cast<size_t>(head);
    k.multiply(fixed(query_heads()[h]), core.width_plain[h], q[h], rows, core.e, core.key.width(), /*add=*/false);
    k.multiply(fixed(keys[h]), core.width_plain[h], k_narrow[h], rows, core.e, core.key.width(), /*add=*/false);
  }

  void attend(int64_t head, int64_t i, int64_t sequence) {
    const auto h = static_cast<size_t>(head);
    const auto d_p = core.d_p;
    const auto weights = of_sequence(p[h], i);
    k.multiply(fixed(of_sequence(q[h], i)), transpose(of_sequence(k_narrow[h], i), core.e), weights, d_p, d_p, core.e,
               /*add=*/false);
    for (int64_t j = 0; j < d_p; j += k.panel) {
      T* const panel = weights.entries + j / k.panel * weights.stride;
      for (int64_t at = 0; at < d_p * k.panel; ++at) {
        panel[at] *= scale;
      }
    }
    k.restore_weights(weights, kNothing<T>, no_bias, 1, /*linear=*/false, d_p, d_p);
    if (masks.active()) {
      // The mask's token is the key slot and its slot the query slot.
      masks.draw(k, drawn, sequence, 0, d_p, head * d_p, d_p);
      const auto kept = of_sequence(mask[h], i);
      const auto after = of_sequence(dropped[h], i);
      for (int64_t j = 0; j < d_p; ++j) {
        for (int64_t at = 0; at < d_p; ++at) {
          entry(kept, at, j) = entry(drawn, j, at);
          entry(after, at, j) = entry(weights, at, j) * entry(kept, at, j);
        }
      }
    }
    k.multiply(fixed(of_sequence(dropped[h], i)), fixed(of_sequence(values[h], i)), of_sequence(mixed[h], i), d_p,
               core.value.width(), d_p, /*add=*/false);
  }

  void normalise() {
    const auto width = core.heads * core.value.width();
    join(mixed, core.value.width(), centred);
    const T* const weight = core.norm_weight.template const_data_ptr<T>();
    const T* const bias = core.norm_bias.template const_data_ptr<T>();
    for (int64_t i = 0; i < rows; ++i) {
      T* const row = centred + i * width;
      double mean = 0, variance = 0;
      for (int64_t j = 0; j < width; ++j) {
        mean += row[j];
      }
      mean /= static_cast<double>(width);
      for (int64_t j = 0; j < width; ++j) {
        variance += (row[j] - mean) * (row[j] - mean);
      }
      rstd[i] = static_cast<T>(1.0 / std::sqrt(variance / static_cast<double>(width) + kLayerNormEps));
      for (int64_t j = 0; j < width; ++j) {
        row[j] = static_cast<T>(row[j] - mean) * rstd[i];
        joined[i * width + j] = row[j] * weight[j] + bias[j];
      }
    }
    split(joined, core.value.width(), normed);
  }
};

}  // namespace dba::ops::cpu
