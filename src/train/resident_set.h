#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dba/data/cache.h"
#include "dba/train/model.h"

namespace dba::train {

/// All that the host has to know of a batch: it decides every shape of the step. Batches of one layout differ in
/// numbers on the device alone.
struct BatchLayout {
  struct Stream {
    std::int64_t rows = 0;     ///< of the packed batch, trailing rows that belong to no sequence included
    std::int64_t longest = 0;  ///< no sequence is longer
    bool equal = false;        ///< all sequences have `longest` tokens
    auto operator<=>(const Stream&) const = default;
  };
  std::int64_t count = 0;
  Stream first, second;
  auto operator<=>(const BatchLayout&) const = default;
};

/// Whether rows of packed batches are rounded up, so that few layouts serve batches of many lengths.
enum class Rows { exact, rounded };

/// A whole set in a device's memory, symbols as narrow as the vocabulary allows. A batch is gathered there from the
/// numbers of its examples; it is the one that `collate` makes, bit by bit, but for the trailing rows.
class ResidentSet {
 public:
  /// Series are standardised by mean and deviation where these are given.
  ResidentSet(const data::CachedSet& set, const data::ChannelStatistics* standardise, at::Device device, Rows rows);

  /// Bytes that a set takes on the device.
  static std::int64_t bytes(const data::CachedSet& set);

  BatchLayout layout(std::span<const std::size_t> examples) const;
  /// What `gather` reads on the device: the numbers of the examples and where their sequences begin and end in the
  /// batch.
  std::vector<std::int64_t> numbers(std::span<const std::size_t> examples) const;
  std::int64_t count_of_numbers(const BatchLayout& layout) const;
  /// numbers: as a tensor on the device; it may hold more behind them. Waits for nothing.
  Batch gather(const at::Tensor& numbers, const BatchLayout& layout) const;
  /// From examples to a batch; the numbers travel without a wait.
  Batch batch(std::span<const std::size_t> examples) const;

  at::Device device() const {
    return labels_.device();
  }

 private:
  struct Stream {
    at::Tensor tokens;     ///< of all examples one after the other: (T) integers or (T, channels) float32
    at::Tensor positions;  ///< (T) integers, of each token in its whole sequence; undefined: nothing is left out
    at::Tensor begin;      ///< (E) int64, on the device
    std::vector<std::int64_t> lengths;
    std::int64_t longest = 0;
  };
  BatchLayout::Stream layout(const Stream& stream, std::span<const std::size_t> examples) const;
  void gather(const Stream& stream, const at::Tensor& examples, const at::Tensor& bounds,
              const BatchLayout::Stream& layout, at::Tensor& input, at::Tensor& positions, Sequences& sequences) const;

  Rows rows_;
  Stream first_, second_;
  at::Tensor labels_;  ///< (E) int64
  bool pairs_ = false;
};

/// What batch.on_device (auto, always, never) says of a set.
bool belongs_on(at::Device device, const data::CachedSet& set, const std::string& on_device);
/// Whether the attention is DBA's streaming passes, which neither read nor touch trailing rows.
bool streams(const config::ModelConfig& model);
/// The set on the device if the configuration of the plan says that it belongs there, nothing otherwise.
std::shared_ptr<const ResidentSet> put_on(at::Device device, const data::CachedSet& set, const ModelPlan& plan);

/// A tensor of these numbers on the host, from where a copy to the device need not be waited for.
at::Tensor ready_to_send(const std::vector<std::int64_t>& numbers, at::Device device);
/// A tensor of these numbers on the device, not waited for.
at::Tensor sent(const std::vector<std::int64_t>& numbers, at::Device device);

}  // namespace dba::train
