#pragma once

#include "ops/cpu/isa/compress.h"
#include "ops/cpu/isa/lanes.h"

/// Weights of restore: softmax over the slots of each head, which are neighbouring columns of one token's row.
namespace dba::ops::cpu::DBA_ISA {

/// How a head's slots lie among the vectors of a row: whole vectors, or a power of two inside one.
template <class T>
struct HeadVectors {
  int64_t vectors;  // per group of vectors that one normalisation spans; 0 where the slots fit neither way
  int64_t lanes;    // per head inside a vector

  explicit HeadVectors(int64_t slots)
      : vectors(slots % kLanes<T> == 0                            ? slots / kLanes<T>
                : slots < kLanes<T> && (slots & (slots - 1)) == 0 ? 1
                                                                  : 0),
        lanes(slots < kLanes<T> ? slots : kLanes<T>) {}
};

constexpr int64_t kMostHeadVectors = 64;

template <class T>
inline void softmax_of_vectors(T* const* at, int64_t vectors, int64_t lanes, const T* bias) {
  const auto max = [](Vector<T> a, Vector<T> b) { return larger<T>(a, b); };
  const auto add = [](Vector<T> a, Vector<T> b) { return a + b; };
  Vector<T> value[kMostHeadVectors];
  Vector<T> largest = value[0] = load(at[0]) + load(bias);
  for (int64_t v = 1; v < vectors; ++v) {
    value[v] = load(at[v]) + load(bias + v * kLanes<T>);
    largest = larger<T>(largest, value[v]);
  }
  largest = over_group<T>(largest, lanes, max);
  Vector<T> sum{};
  for (int64_t v = 0; v < vectors; ++v) {
    value[v] = exponential<T>(value[v] - largest);
    sum += value[v];
  }
  // Divided, not multiplied by an inverse: its rounding would be common to the weights, and they would not sum to 1.
  sum = over_group<T>(sum, lanes, add);
  for (int64_t v = 0; v < vectors; ++v) {
    store<T>(at[v], value[v] / sum);
  }
}

template <class T>
inline void softmax_gradient_of_vectors(const T* const* weights, T* const* gradient, int64_t vectors, int64_t lanes) {
  const auto add = [](Vector<T> a, Vector<T> b) { return a + b; };
  Vector<T> sum{};
  for (int64_t v = 0; v < vectors; ++v) {
    sum += load(weights[v]) * load(gradient[v]);
  }
  sum = over_group<T>(sum, lanes, add);
  for (int64_t v = 0; v < vectors; ++v) {
    store(gradient[v], load(weights[v]) * (load(gradient[v]) - sum));
  }
}

/// Any other number of slots, entry by entry: `at(j)` is slot j of the head.
template <class T, class At>
inline void softmax_of_entries(At at, int64_t slots, const T* bias) {
  T largest = at(0) + bias[0];
  for (int64_t j = 0; j < slots; ++j) {
    at(j) += bias[j];
    largest = largest > at(j) ? largest : at(j);
  }
  T sum = 0;
  for (int64_t j = 0; j < slots; j += kLanes<T>) {
    const int64_t count = smaller(kLanes<T>, slots - j);
    Vector<T> value{};
    for (int64_t lane = 0; lane < count; ++lane) {
      value[lane] = at(j + lane) - largest;
    }
    value = exponential<T>(value);
    for (int64_t lane = 0; lane < count; ++lane) {
      at(j + lane) = value[lane];
      sum += value[lane];
    }
  }
  for (int64_t j = 0; j < slots; ++j) {
    at(j) /= sum;
  }
}

/// Calls visit(row, column) for each panel-aligned vector of every token.
template <class T, class Visit>
inline void each_vector(int64_t tokens, int64_t columns, Visit visit) {
  for (int64_t column = 0; column < columns; column += kLanes<T>) {
    for (int64_t t = 0; t < tokens; ++t) {
      visit(t, column);
    }
  }
}

template <class T>
inline void multiply_entries(Panels<T> matrix, Panels<const T> mask, int64_t tokens, int64_t columns) {
  each_vector<T>(tokens, columns, [&](int64_t t, int64_t column) {
    T* const at = entries_at(matrix, column) + t * kPanel<T>;
    store(at, load(at) * load(entries_at(mask, column) + t * kPanel<T>));
  });
}

template <class T>
void restore_weights(Panels<T> scores, Panels<const T> mask, const T* bias, int64_t heads, bool linear, int64_t tokens,
                     int64_t columns) {
  const int64_t slots = columns / heads;
  const HeadVectors<T> head(slots);
  if (linear) {
    each_vector<T>(tokens, columns, [&](int64_t t, int64_t column) {
      T* const at = entries_at(scores, column) + t * kPanel<T>;
      store(at, load(at) + load(bias + column));
    });
  } else if (head.vectors > 0 && head.vectors <= kMostHeadVectors) {
    for (int64_t column = 0; column < columns; column += head.vectors * kLanes<T>) {
      T* at[kMostHeadVectors];
      for (int64_t v = 0; v < head.vectors; ++v) {
        at[v] = entries_at(scores, column + v * kLanes<T>);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        softmax_of_vectors<T>(at, head.vectors, head.lanes, bias + column);
        for (int64_t v = 0; v < head.vectors; ++v) {
          at[v] += kPanel<T>;
        }
      }
    }
  } else {
    for (int64_t first = 0; first < columns; first += slots) {
      for (int64_t t = 0; t < tokens; ++t) {
        const auto at = [&](int64_t j) -> T& { return entries_at(scores, first + j)[t * kPanel<T>]; };
        softmax_of_entries<T>(at, slots, bias + first);
      }
    }
  }
  if (mask.entries != nullptr) {
    multiply_entries<T>(scores, mask, tokens, columns);
  }
}

template <class T>
void restore_gradient(Panels<const T> weights, Panels<const T> mask, Panels<T> gradient, int64_t heads, bool linear,
                      int64_t tokens, int64_t columns) {
  const int64_t slots = columns / heads;
  const HeadVectors<T> head(slots);
  if (mask.entries != nullptr) {
    multiply_entries<T>(gradient, mask, tokens, columns);
  }
  if (linear) {
    return;
  }
  if (head.vectors > 0 && head.vectors <= kMostHeadVectors) {
    for (int64_t column = 0; column < columns; column += head.vectors * kLanes<T>) {
      const T* weight[kMostHeadVectors];
      T* at[kMostHeadVectors];
      for (int64_t v = 0; v < head.vectors; ++v) {
        weight[v] = entries_at(weights, column + v * kLanes<T>);
        at[v] = entries_at(gradient, column + v * kLanes<T>);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        softmax_gradient_of_vectors<T>(weight, at, head.vectors, head.lanes);
        for (int64_t v = 0; v < head.vectors; ++v) {
          weight[v] += kPanel<T>;
          at[v] += kPanel<T>;
        }
      }
    }
    return;
  }
  for (int64_t first = 0; first < columns; first += slots) {
    for (int64_t t = 0; t < tokens; ++t) {
      T sum = 0;
      for (int64_t j = first; j < first + slots; ++j) {
        const auto at = t * (kPanel<T>);
        sum += entries_at(weights, j)[at] * entries_at(gradient, j)[at];
      }
      for (int64_t j = first; j < first + slots; ++j) {
        T& at = entries_at(gradient, j)[t * kPanel<T>];
        at = entries_at(weights, j)[t * kPanel<T>] * (at - sum);
      }
    }
  }
}

}  // namespace dba::ops::cpu::DBA_ISA
