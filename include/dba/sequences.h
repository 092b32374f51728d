#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dba {

/// Where each of the B sequences of a batch lies among the N rows of a token matrix (N, d).
///
/// Sequence b owns the rows begin[b] … end[b] − 1. Sequences stand in order and do not overlap; rows between them
/// belong to nobody (padding): they are never read and come out as zeros. So packed, padded and jagged batches are
/// one case, shapes stay static, and nobody has to read lengths back from a GPU.
///
/// The makers below check values where the tensors are on the CPU. On another device they check in debug mode only
/// (`dba::set_debug_checks`), because a check would have to wait for the device; `from_mask` always checks.
struct Sequences {
  at::Tensor begin;  ///< (B) int64
  at::Tensor end;    ///< (B) int64
  int64_t rows = 0;  ///< N
  /// n where the batch is a padded one of shape (B, n, …), else −1.
  int64_t padded_length = -1;
  /// An upper bound of the lengths that the host knows, or −1. Softmax attention and the direct order need one on a
  /// GPU and otherwise wait for the device; the streaming passes never do.
  int64_t max_length = -1;
  /// Whether each sequence is known to begin where the one before ends.
  bool consecutive = false;

  int64_t count() const {
    return begin.size(0);
  }
  at::Tensor lengths() const;
  /// (N) the sequence each row belongs to; −1 for rows of nobody.
  at::Tensor sequence_of_row() const;
  /// (N) the index of each row inside its sequence; 0 for rows of nobody.
  at::Tensor position_of_row() const;
  /// (N) true for rows that lie in a sequence.
  at::Tensor row_mask() const;
  /// A bound of the lengths for the host: `max_length`, or the longest one, read from the device if need be.
  int64_t longest() const;

  /// Rows b·n … b·n + n − 1 form sequence b: a plain batch (B, n, …) without padding. All batches of one shape share
  /// `begin` and `end`; nobody may write into them.
  static Sequences dense(int64_t batch, int64_t length, at::Device device);
  /// Packed rows: sequence b is cu_seqlens[b] … cu_seqlens[b + 1] − 1; `cu_seqlens` is (B + 1), integer.
  static Sequences packed(const at::Tensor& cu_seqlens, int64_t rows, int64_t max_length = -1);
  /// A padded batch (B, n, …) whose sequence b has lengths[b] tokens, at the front.
  static Sequences from_lengths(const at::Tensor& lengths, int64_t padded_length);
  /// A padded batch whose mask (B, n) is true where a token is real. The real tokens of a row must be contiguous.
  static Sequences from_mask(const at::Tensor& mask);
  /// Any ordered, disjoint ranges.
  static Sequences ranges(const at::Tensor& begin, const at::Tensor& end, int64_t rows);
};

/// In debug mode, sequence bounds on a GPU are checked too (each check waits for the device). Off at first, on when
/// the environment variable DBA_DEBUG is 1.
void set_debug_checks(bool on);
bool debug_checks();

}  // namespace dba
