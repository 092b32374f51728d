#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dba/config/train_config.h"
#include "dba/data/cache.h"
#include "dba/sequences.h"

namespace dba::train {

/// The examples of each batch of an epoch, in order: a function of the arguments alone. Examples are shuffled, then
/// sorted by length inside buckets of `bucket` batches, then the batches of a bucket are shuffled. A
/// batch holds at most `size` examples and, with a token budget, at most so many tokens (but at least one example).
std::vector<std::vector<std::size_t>> plan_epoch(std::span<const std::size_t> examples,
                                                 std::span<const std::int64_t> lengths,
                                                 const config::BatchConfig& batch, std::uint64_t seed,
                                                 std::int64_t epoch);

/// The same examples in their order, for evaluation.
std::vector<std::vector<std::size_t>> plan_in_order(std::span<const std::size_t> examples,
                                                    std::span<const std::int64_t> lengths,
                                                    const config::BatchConfig& batch);

/// The same examples from the shortest to the longest, for evaluation by attentions that pad a batch to one length: as
/// many at a time as take at most `places` rows with all as long as the longest of them (but at least one).
std::vector<std::vector<std::size_t>> plan_by_length(std::span<const std::size_t> examples,
                                                     std::span<const std::int64_t> lengths, std::int64_t places);

/// Examples as tensors, packed one behind the other.
struct Batch {
  at::Tensor input;  ///< (N) int64 symbols, or (N, channels) float32
  Sequences sequences;
  at::Tensor positions;     ///< (N) int64, of each token in its whole sequence; undefined: nothing is left out
  at::Tensor second_input;  ///< of pairs
  Sequences second_sequences;
  at::Tensor second_positions;
  at::Tensor labels;  ///< (B) int64, −1: none
  std::int64_t count() const {
    return labels.size(0);
  }
  Batch to(at::Device device) const;
  /// In page-locked memory, from which a copy to a GPU need not be waited for.
  Batch pinned() const;
};

/// Series values (N, channels) with every channel less its mean and over its deviation; without statistics as they are.
/// NaN, which stands in a channel that a series has no value of, becomes 0 in the result.
at::Tensor standardised(const at::Tensor& values, const data::ChannelStatistics* statistics);

/// Symbols that the tokeniser leaves out are left out. Series are standardised by mean and deviation where these are
/// given. Where all sequences have one length, `sequences` knows it (padded_length).
Batch collate(const data::CachedSet& set, std::span<const std::size_t> examples,
              const data::ChannelStatistics* standardise);
/// The same for examples that are not cached.
Batch collate(std::span<const data::Encoded> examples, const data::Encoding& encoding,
              const data::ChannelStatistics* standardise);

}  // namespace dba::train
