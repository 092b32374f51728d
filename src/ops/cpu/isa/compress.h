#pragma once

#include <limits>

#include "ops/cpu/isa/exponential.h"
#include "ops/cpu/isa/layout.h"

/// Scores of compress, column by column: a vector holds neighbouring score rows, so that everything over tokens is
/// plain arithmetic of vectors.
namespace dba::ops::cpu::DBA_ISA {

/// Lanes that hold linear rows, for the vector that starts at `column`.
template <class T>
inline Integer<T> linear_lanes(int64_t column, int64_t first_linear) {
  Integer<T> lanes{};
  for (int lane = 0; lane < kLanes<T>; ++lane) {
    lanes[lane] = column + lane >= first_linear ? -1 : 0;
  }
  return lanes;
}

template <class T>
inline T* entries_at(Panels<T> panels, int64_t column) {
  return panels.entries + column / kPanel<T> * panels.stride + column % kPanel<T>;
}

template <class T>
inline Vector<T> largest_of_column(const T* scores, int64_t tokens) {
  Vector<T> largest[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    largest[i] = load(scores);
  }
  int64_t t = 0;
  for (; t + 4 <= tokens; t += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      largest[i] = larger<T>(largest[i], load(scores + (t + i) * kPanel<T>));
    }
  }
  for (; t < tokens; ++t) {
    largest[0] = larger<T>(largest[0], load(scores + t * kPanel<T>));
  }
  return larger<T>(larger<T>(largest[0], largest[1]), larger<T>(largest[2], largest[3]));
}

template <class T>
bool compress_weights(Panels<const T> scores, Panels<T> weights, Panels<const T> mask, const T* bias,
                      const RunningRows<T>& rows, int64_t first_linear, T inverse_length, int64_t tokens,
                      int64_t columns) {
  bool changed = false;
  for (int64_t column = 0; column < columns; column += kLanes<T>) {
    const T* const score = entries_at(scores, column);
    T* const out = entries_at(weights, column);
    const T* const kept = mask.entries == nullptr ? nullptr : entries_at(mask, column);
    const bool any_linear = column + kLanes<T> > first_linear;
    const Integer<T> linear = linear_lanes<T>(column, first_linear);
    const Vector<T> term = load(bias + column);
    const Vector<T> before = load(rows.largest + column);
    const Vector<T> after = larger<T>(before, largest_of_column(score, tokens) + term);
    // Scores of −inf alone weigh nothing.
    const Vector<T> shift = after == spread(-std::numeric_limits<T>::infinity()) ? Vector<T>{} : after;
    Vector<T> factor = exponential<T>(before - shift);
    if (any_linear) {
      factor = linear ? spread(T(1)) : factor;
    }
    Vector<T> sum{}, r{};  // of this tile: sums of sums round less than long ones
    for (int64_t t = 0; t < tokens; ++t) {
      const Vector<T> value = load(score + t * kPanel<T>) + term;
      Vector<T> weight = exponential<T>(value - shift);
      if (any_linear) {
        weight = linear ? value * inverse_length : weight;
      }
      sum += weight;
      if (kept != nullptr) {
        weight *= load(kept + t * kPanel<T>);
      }
      r += weight;
      store(out + t * kPanel<T>, weight);
    }
    store(rows.largest + column, after);
    store(rows.sum + column, load(rows.sum + column) * factor + sum);
    store(rows.r + column, load(rows.r + column) * factor + r);
    store(rows.factor + column, factor);
    for (int lane = 0; lane < kLanes<T>; ++lane) {
      changed = changed || factor[lane] != T(1);
    }
  }
  return changed;
}

template <class T>
void compress_gradient(Panels<const T> scores, Panels<T> weights, Panels<T> products, Panels<const T> mask,
                       const RowGradient<T>& rows, int64_t first_linear, T inverse_length, int64_t tokens,
                       int64_t columns) {
  for (int64_t column = 0; column < columns; column += kLanes<T>) {
    const T* const score = entries_at(scores, column);
    T* const out = entries_at(weights, column);
    T* const product = entries_at(products, column);
    const T* const kept = mask.entries == nullptr ? nullptr : entries_at(mask, column);
    const bool any_linear = column + kLanes<T> > first_linear;
    const Integer<T> linear = linear_lanes<T>(column, first_linear);
    const Vector<T> term = load(rows.bias + column);
    const Vector<T> lse = load(rows.lse + column);
    const Vector<T> dr = load(rows.dr + column);
    const Vector<T> reduction = load(rows.reduction + column);
    Vector<T> bias_sum{};
    for (int64_t t = 0; t < tokens; ++t) {
      const Vector<T> value = load(score + t * kPanel<T>) + term;
      Vector<T> weight = exponential<T>(value - lse);
      Vector<T> of_weight = load(product + t * kPanel<T>) + dr;
      Vector<T> dropped = weight;
      if (kept != nullptr) {
        const Vector<T> factor = load(kept + t * kPanel<T>);
        of_weight *= factor;
        dropped *= factor;
      }
      Vector<T> of_score = weight * (of_weight - reduction);
      if (any_linear) {
        const Vector<T> shared_out = value * inverse_length;
        dropped = linear ? (kept != nullptr ? shared_out * load(kept + t * kPanel<T>) : shared_out) : dropped;
        of_score = linear ? of_weight * inverse_length : of_score;
      }
      bias_sum += of_score;
      store(out + t * kPanel<T>, dropped);
      store(product + t * kPanel<T>, of_score);
    }
    store(rows.bias_sum + column, load(rows.bias_sum + column) + bias_sum);
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
