#pragma once

#include <torch/types.h>

#include <vector>

#include "dba/sequences.h"
#include "ops/kept_tensors.h"

namespace dba::zoo {

/// Packed rows laid out as blocks of neighbouring tokens, counted from each sequence's first token, by heads:
/// (N, H·w) ↔ (B, H, blocks, size, w), zero where there is no token. Differentiable both ways.
class Blocks {
 public:
  /// Blocks of `size` tokens in every sequence.
  Blocks(const Sequences& sequences, int64_t size);
  /// The same; one block as long as the longest sequence, where that is shorter.
  static Blocks up_to(const Sequences& sequences, int64_t size);
  /// One block as long as the longest sequence: a padded batch (B, H, 1, n, w).
  static Blocks whole(const Sequences& sequences);
  /// About √n blocks of about √n tokens, by each sequence's own n.
  static Blocks square(const Sequences& sequences);

  at::Tensor take(const at::Tensor& rows, int64_t heads) const;
  at::Tensor give(const at::Tensor& blocks) const;
  /// (N, H·w) ↔ (B, H, n, w), where there is one block.
  at::Tensor take_whole(const at::Tensor& rows, int64_t heads) const {
    return take_padded(rows).unflatten(2, {heads, rows.size(1) / heads}).transpose(1, 2);
  }
  at::Tensor give_whole(const at::Tensor& padded) const {
    return give_padded(padded.transpose(1, 2).flatten(2));
  }
  /// (N, d) ↔ (B, n, d), where there is one block: a view of a plain batch.
  at::Tensor take_padded(const at::Tensor& rows) const {
    return full_ ? rows.reshape({batch, size, rows.size(1)}) : take(rows, 1).squeeze(2).squeeze(1);
  }
  at::Tensor give_padded(const at::Tensor& padded) const {
    return full_ ? padded.reshape({-1, padded.size(2)}) : give(padded.unsqueeze(1).unsqueeze(2));
  }

  /// `valid`, or undefined where every place is known to have a token: masks that hide nothing cost as much as others.
  at::Tensor real() const {
    return full_ ? at::Tensor() : valid();
  }
  /// The same as (B, n), where there is one block.
  at::Tensor real_whole() const {
    return full_ ? at::Tensor() : valid().squeeze(1);
  }
  /// Whether the host knows that all sequences have the length of the longest.
  bool one_length() const {
    return plain_;
  }
  /// Of one entry for each sequence, along the first axis, the first where the host knows that all are alike.
  at::Tensor once(const at::Tensor& by_sequence) const {
    return plain_ ? by_sequence.narrow(0, 0, 1) : by_sequence;
  }
  /// (B, blocks, size) of each place whether a token stands there; made when first asked for.
  const at::Tensor& valid() const;

  /// Which keys there are in blocks that are listed for every block of queries, where `used`: both (B or 1, H or 1,
  /// blocks, G) → (B or 1, H or 1, blocks, 1, G·size). Blocks of one size.
  at::Tensor keys_of(const at::Tensor& index, const at::Tensor& used) const;

  /// (B) of each sequence: its length, its number of blocks, the tokens of a full block; made when first asked for.
  const at::Tensor& lengths() const;
  const at::Tensor& counts() const;
  const at::Tensor& sizes() const;
  /// What decides a tensor that is made of the blocks and of `own` numbers alone, for ops::kept_tensors: nothing but
  /// numbers of the host, where it knows them all.
  std::optional<ops::KeptKey> key(const char* name, const std::vector<int64_t>& own = {}) const;
  /// What tensors of such numbers are made with.
  at::TensorOptions numbers() const {
    return sequences_.begin.options();
  }

  int64_t batch;  ///< B
  int64_t count;  ///< blocks of the longest sequence
  int64_t size;   ///< tokens of the largest block

 private:
  /// `sizes` is undefined where every sequence has blocks of `size` tokens.
  Blocks(const Sequences& sequences, const at::Tensor& sizes, int64_t size, int64_t count);

  /// (B or 1, blocks, size) of each place its number in its sequence.
  const at::Tensor& position() const;
  /// (B·blocks·size) the row at each place, −1 for none; (N) the place of each row, −1 for rows of nobody.
  const at::Tensor& row_at() const;
  const at::Tensor& place_of() const;

  const Sequences& sequences_;
  bool plain_;  // a batch without padding and one block size: views and a pad do instead of gathers
  bool full_;   // plain, and no block is shorter than the others
  mutable at::Tensor lengths_, counts_, sizes_, position_, valid_, row_at_, place_of_;
};

/// (B, 1, blocks, 1, size): which keys of a block there are, to be spread over heads and queries; undefined for an
/// undefined one.
at::Tensor key_mask(const at::Tensor& valid);

/// Blocks of keys for every block of queries.
class BlockList {
 public:
  /// index (B, H, blocks, G): which blocks; it may have extent 1 in its first two axes. key: what decides it.
  explicit BlockList(const at::Tensor& index, const std::optional<ops::KeptKey>& key = {}) : index_(index), key_(key) {}
  /// Those of (B, H, blocks, size, w) side by side: (B, H, blocks, G·size, w), blocks before heads in memory. What is
  /// gathered with one list has the same B, H and blocks.
  at::Tensor of(const at::Tensor& blocks) const;

 private:
  at::Tensor index_;
  std::optional<ops::KeptKey> key_;
  mutable at::Tensor row_;  // of each block, as (B·blocks·H·G); made when first asked for
};

/// The low score where the mask is false; the scores themselves where it is undefined.
at::Tensor masked_scores(const at::Tensor& scores, const at::Tensor& mask);

/// The first `count` entries of x along an axis; x itself where it has no more, for slices are copied in backward.
at::Tensor first_of(const at::Tensor& x, int64_t axis, int64_t count);

/// The first tokens of every sequence, of blocks of one size: (B, H, first, w), or fewer where there are no more.
at::Tensor first_tokens(const at::Tensor& blocks, int64_t first);
/// `blocks` with their first tokens replaced.
at::Tensor with_first_tokens(const at::Tensor& blocks, const at::Tensor& first);

/// The band |i − j| ≤ size around each token, in blocks of that size: the block before, its own and the one behind.
/// Where there is one block, it is alone.
struct Band {
  explicit Band(const Blocks& blocks);
  /// For every block of (B, H, blocks, size, w) those of its band, zero where there is none; views of one tensor.
  std::vector<at::Tensor> beside(const at::Tensor& blocks) const;
  at::Tensor mask;                ///< (B or 1, 1, blocks, size, keys of all of them): keys in the band that exist
  std::vector<at::Tensor> masks;  ///< (B or 1, 1, blocks, size, size) for each of them: views of `mask`
};

}  // namespace dba::zoo
