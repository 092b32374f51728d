#pragma once

#include <cstdint>

/// The inner loops of the CPU passes, compiled once for each instruction set and chosen at run time.
///
/// Matrices are panelled: columns are cut into panels of `panel` columns, and a panel is stored row by row. Entry (i,
/// j) lies at entries[j / panel · stride + i · row + j % panel]. Scratch has row = panel, stride ≥ rows · panel and is
/// aligned to 64 bytes; what lies beyond the last column is unspecified and never reaches a real column. A row-major
/// matrix is panels too, with stride = panel: products take it wherever they take scratch, the right factor and the
/// result only if its width is a whole number of vectors.
/// Arrays with an entry per column are padded to whole panels.
namespace dba::ops::cpu {

template <class T>
struct Panels {
  T* entries;
  int64_t stride;
  int64_t row;
};

/// One site of dropout in one sequence: see philox.h.
struct MaskKey {
  uint32_t key0, key1, offset, sequence, site, threshold;
};

/// What online normalisation over tokens knows of each score row so far.
template <class T>
struct RunningRows {
  T* largest;  ///< −inf before the first tile
  T* sum;      ///< Σ exp(score − largest), without dropout
  T* r;        ///< Σ of the weights, with dropout
  T* factor;   ///< out: what sums made with the largest score before must be multiplied by
};

/// What the gradient of a score row needs, one entry per column.
template <class T>
struct RowGradient {
  const T* bias;
  const T* lse;
  const T* dr;
  const T* reduction;  ///< Σ_d dC ∘ C + dr ∘ r − dlse
  T* bias_sum;         ///< gains Σ over tokens of the scores' gradients
};

/// Memory that is wanted soon; may be nothing.
struct Ahead {
  const void* at = nullptr;
  int64_t bytes = 0;
};

template <class T>
struct Kernels {
  const char* name;
  int64_t lanes;  ///< of a vector
  int64_t panel;

  /// out (rows × columns) = a (rows × inner) · b (inner × columns), added to what is there where `add`.
  void (*multiply)(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns, int64_t inner,
                   bool add);
  /// The same, while the cache fetches what is ahead.
  void (*multiply_ahead)(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns,
                         int64_t inner, bool add, Ahead ahead);
  /// out (rows × columns) = aᵀ · b with a (inner × rows).
  void (*multiply_transposed)(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns,
                              int64_t inner, bool add);
  void (*multiply_transposed_ahead)(Panels<const T> a, Panels<const T> b, Panels<T> out, int64_t rows, int64_t columns,
                                    int64_t inner, bool add, Ahead ahead);

  /// Row-major rows (row_stride entries apart) as panels, and as panels of the transposed matrix.
  void (*pack)(const T* from, int64_t row_stride, Panels<T> to, int64_t rows, int64_t columns);
  void (*pack_bfloat16)(const uint16_t* from, int64_t row_stride, Panels<T> to, int64_t rows, int64_t columns);
  void (*pack_transposed)(const T* from, int64_t row_stride, Panels<T> to, int64_t rows, int64_t columns);
  /// Panels as row-major rows, row i over row_divisor[i] where that is not null.
  void (*unpack)(Panels<const T> from, const T* row_divisor, T* to, int64_t row_stride, int64_t rows, int64_t columns);
  void (*unpack_bfloat16)(Panels<const T> from, uint16_t* to, int64_t row_stride, int64_t rows, int64_t columns);

  /// (rows, columns) bfloat16 without gaps: to = act(from + bias), or to = gradient ∘ act′(from + bias), which the sums
  /// over rows gain before it is rounded. bias and sums are padded to whole vectors and aligned. act is GELU or ReLU.
  /// float alone, as the next two.
  void (*activate_bfloat16)(const uint16_t* from, const T* bias, uint16_t* to, int64_t rows, int64_t columns,
                            bool gelu);
  void (*differentiate_bfloat16)(const uint16_t* from, const T* bias, const uint16_t* gradient, uint16_t* to, T* sums,
                                 int64_t rows, int64_t columns, bool gelu);
  /// GELU for results that are rounded to sixteen bits, and its gradient: entries without gaps, aligned, with room for
  /// whole vectors.
  void (*rounded_gelu)(T* x, int64_t count);
  void (*rounded_gelu_gradient)(const T* x, T* gradient, int64_t count);

  /// Row i times factor[i], or over divisor[i].
  void (*scale_rows)(Panels<T> matrix, const T* factor, int64_t rows, int64_t columns);
  void (*divide_rows)(Panels<T> matrix, const T* divisor, int64_t rows, int64_t columns);
  /// sums[j] += Σ over the rows of column j.
  void (*add_rows)(Panels<const T> matrix, T* sums, int64_t rows, int64_t columns);
  /// products[i] = Σ_j a(i, j) b(i, j); b has one row for all where its rows are 0 apart.
  void (*row_products)(Panels<const T> a, Panels<const T> b, T* products, int64_t rows, int64_t columns);

  /// 0 or `kept` for tokens first_token … of the slots first_slot …; first_token is a multiple of 4.
  void (*dropout_mask)(const MaskKey& key, T kept, Panels<T> mask, int64_t first_token, int64_t tokens,
                       int64_t first_slot, int64_t slots);

  /// Weights of scores (tokens × columns), in their place or another: exp(score + bias − largest) and, from column
  /// `first_linear` on, (score + bias) · inverse_length; times the mask, whose entries may be null. Returns whether a
  /// factor is not 1.
  bool (*compress_weights)(Panels<const T> scores, Panels<T> weights, Panels<const T> mask, const T* bias,
                           const RunningRows<T>& rows, int64_t first_linear, T inverse_length, int64_t tokens,
                           int64_t columns);
  /// The weights after dropout, in the place of the scores or another; `products` (X dCᵀ) become the gradient of the
  /// scores.
  void (*compress_gradient)(Panels<const T> scores, Panels<T> weights, Panels<T> products, Panels<const T> mask,
                            const RowGradient<T>& rows, int64_t first_linear, T inverse_length, int64_t tokens,
                            int64_t columns);

  /// Scores become weights: softmax over each head's share of the columns (or the scores themselves where `linear`)
  /// after the bias, times the mask, whose entries may be null.
  void (*restore_weights)(Panels<T> scores, Panels<const T> mask, const T* bias, int64_t heads, bool linear,
                          int64_t tokens, int64_t columns);
  /// `gradient` of the weights becomes that of the scores.
  void (*restore_gradient)(Panels<const T> weights, Panels<const T> mask, Panels<T> gradient, int64_t heads,
                           bool linear, int64_t tokens, int64_t columns);
};

/// Columns of the widest panel that any instruction set uses.
constexpr int64_t kWidestPanel = 64;

enum class InstructionSet { baseline, avx2, avx512 };

/// The best one that the processor and this build have.
InstructionSet best_instruction_set();
/// The one in use: the best, unless the environment variable DBA_CPU names a lesser one or a test sets it.
InstructionSet instruction_set();
void set_instruction_set(InstructionSet set);

template <class T>
const Kernels<T>& kernels();

/// The tables; null where the build lacks the set.
template <class T>
const Kernels<T>* baseline_kernels();
template <class T>
const Kernels<T>* avx2_kernels();
template <class T>
const Kernels<T>* avx512_kernels();

}  // namespace dba::ops::cpu
