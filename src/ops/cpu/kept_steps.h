#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ops/cpu/attention_pass.h"
#include "ops/cpu/kernels.h"

/// Steps of a forward that stay for its backward, which would compute the same numbers again. They stay with the memory
/// of the summary, not as an output of their own: whether there are any depends on the lengths of the sequences, and
/// nothing depends on whether there are.
namespace dba::ops::cpu {

/// What the steps were made from: settings, sequences, and tensors by where they lie and how often they were written
/// to.
struct StepsOrigin {
  StepsOrigin(const AttentionArguments& arguments, const WorkPlan& plan);
  bool operator==(const StepsOrigin&) const = default;

  bool known = true;  ///< false: one of the tensors does not count how often it is written to
  std::vector<int64_t> numbers;
};

/// A matrix with a row per token, in panels, tile after tile of tokens; absent where `entries` is null.
template <class T>
struct KeptTiles {
  T* entries = nullptr;
  int64_t columns = 0;

  Panels<T> tile(int64_t first_row, int64_t tokens, int64_t panel) const {
    return {entries + first_row * columns, tokens * panel, panel};
  }
  Ahead ahead(int64_t first_row, int64_t tokens) const {
    const auto bytes = tokens * columns * static_cast<int64_t>(sizeof(T));
    return entries == nullptr ? Ahead{} : Ahead{entries + first_row * columns, bytes};
  }
};

/// How much there is to keep, in numbers: columns of whole panels for a token, and what a sequence has.
struct KeptSizes {
  int64_t tokens, score_columns, weight_columns;
  int64_t batch, of_sequence;

  int64_t numbers() const {
    return tokens * (score_columns + weight_columns) + batch * of_sequence;
  }
};

template <class T>
struct KeptSteps {
  KeptTiles<T> scores;       ///< of compress, before their bias
  KeptTiles<T> weights;      ///< of restore
  T* projections = nullptr;  ///< of the core, as CoreForward lays them out

  KeptSteps() = default;
  KeptSteps(void* memory, const KeptSizes& sizes) {
    if (memory == nullptr) {
      return;
    }
    scores = {static_cast<T*>(memory), sizes.score_columns};
    T* const after_scores = scores.entries + sizes.tokens * sizes.score_columns;
    weights = {sizes.weight_columns == 0 ? nullptr : after_scores, sizes.weight_columns};
    projections = sizes.of_sequence == 0 ? nullptr : after_scores + sizes.tokens * sizes.weight_columns;
  }
};

/// An uninitialised tensor that carries steps of so many bytes, as long as its memory lives; none where they would be
/// more than a constant, or their origin is unknown. A copy of it carries none.
at::Tensor empty_with_steps(at::IntArrayRef sizes, at::ScalarType type, int64_t bytes, const StepsOrigin& origin);

/// The steps that a tensor carries; null where there are none of this origin.
void* steps_with(const at::Tensor& tensor, const StepsOrigin& origin);

}  // namespace dba::ops::cpu
