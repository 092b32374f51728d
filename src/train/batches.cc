#include "dba/train/batches.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "dba/data/random.h"

namespace dba::train {
namespace {

using Examples = std::vector<std::size_t>;

template <class Element>
void shuffle(std::span<Element> elements, data::CounterRandom& random) {
  for (std::size_t i = elements.size(); i > 1; --i) {
    std::swap(elements[i - 1], elements[random.below(static_cast<std::uint32_t>(i))]);
  }
}

std::vector<Examples> cut(std::span<const std::size_t> order, std::span<const std::int64_t> lengths,
                          const config::BatchConfig& batch) {
  std::vector<Examples> batches;
  std::int64_t tokens = 0;
  for (const auto example : order) {
    const auto length = lengths[example];
    const bool full = !batches.empty() && (std::ssize(batches.back()) >= batch.size ||
                                           (batch.tokens > 0 && tokens + length > batch.tokens));
    if (batches.empty() || full) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(example);
    tokens += length;
  }
  return batches;
}

/// Examples laid one behind the other while they come.
class Packer {
 public:
  explicit Packer(const data::Encoding& encoding) : tokeniser_(encoding.tokeniser), channels_(encoding.channels) {}

  void add(std::span<const std::int32_t> symbols) {
    if (tokeniser_.leaves_any_out()) {
      return add_tokens(symbols);
    }
    symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
    close(std::ssize(symbols));
  }
  void add(const data::SymbolSpan& symbols) {
    if (tokeniser_.leaves_any_out()) {
      return add_tokens(symbols);
    }
    const auto before = symbols_.size();
    symbols_.resize(before + symbols.size());
    symbols.copy(symbols_.data() + before);
    close(static_cast<std::int64_t>(symbols.size()));
  }
  void add(std::span<const float> values) {
    values_.insert(values_.end(), values.begin(), values.end());
    close(std::ssize(values) / static_cast<std::int64_t>(channels_));
  }
  Sequences sequences() const {
    const auto bounds = torch::tensor(bounds_, at::kLong);
    auto sequences = Sequences::packed(bounds, bounds_.back(), longest_);
    if (longest_ > 0 && shortest_ == longest_) {
      sequences.padded_length = longest_;
    }
    return sequences;
  }
  at::Tensor symbols() const {
    return torch::tensor(symbols_, at::kLong);
  }
  at::Tensor positions() const {
    return tokeniser_.leaves_any_out() ? torch::tensor(positions_, at::kLong) : at::Tensor();
  }
  at::Tensor values(const data::ChannelStatistics* standardise) const {
    return standardised(torch::tensor(values_, at::kFloat).view({-1, static_cast<std::int64_t>(channels_)}),
                        standardise);
  }

 private:
  template <class Symbols>
  void add_tokens(const Symbols& symbols) {
    const auto before = std::ssize(symbols_);
    data::each_token(tokeniser_, symbols, [this](std::int32_t symbol, std::int64_t position) {
      symbols_.push_back(symbol);
      positions_.push_back(position);
    });
    close(std::ssize(symbols_) - before);
  }
  void close(std::int64_t length) {
    bounds_.push_back(bounds_.back() + length);
    longest_ = std::max(longest_, length);
    shortest_ = std::min(shortest_, length);
  }

  const data::Tokeniser& tokeniser_;
  std::size_t channels_;
  std::vector<std::int64_t> symbols_;
  std::vector<std::int64_t> positions_;  ///< only where symbols are left out
  std::vector<float> values_;
  std::vector<std::int64_t> bounds_{0};
  std::int64_t longest_ = 0;
  std::int64_t shortest_ = std::numeric_limits<std::int64_t>::max();
};

template <class Get>
Batch pack(std::size_t count, const data::Encoding& encoding, const data::ChannelStatistics* standardise, Get get) {
  Packer first(encoding), second(encoding);
  std::vector<std::int64_t> labels;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& example = get(i);
    if (encoding.kind == data::Kind::series) {
      first.add(example.values);
    } else {
      first.add(example.first);
    }
    if (encoding.kind == data::Kind::pairs) {
      second.add(example.second);
    }
    labels.push_back(example.label);
  }
  Batch batch;
  batch.input = encoding.kind == data::Kind::series ? first.values(standardise) : first.symbols();
  batch.sequences = first.sequences();
  batch.positions = first.positions();
  if (encoding.kind == data::Kind::pairs) {
    batch.second_input = second.symbols();
    batch.second_sequences = second.sequences();
    batch.second_positions = second.positions();
  }
  batch.labels = torch::tensor(labels, at::kLong);
  return batch;
}

/// A channel that a series has no value of is 0: the mean, where the values are standardised.
at::Tensor without_nan(const at::Tensor& values) {
  return torch::where(torch::isnan(values), torch::zeros({}, values.options()), values);
}

/// A batch whose tensors have all gone through `change`.
template <class Change>
Batch changed(const Batch& batch, Change change) {
  Batch result = batch;
  for (auto* tensor :
       {&result.input, &result.sequences.begin, &result.sequences.end, &result.positions, &result.second_input,
        &result.second_sequences.begin, &result.second_sequences.end, &result.second_positions, &result.labels}) {
    if (tensor->defined()) {
      *tensor = change(*tensor);
    }
  }
  return result;
}

}  // namespace

std::vector<Examples> plan_epoch(std::span<const std::size_t> examples, std::span<const std::int64_t> lengths,
                                 const config::BatchConfig& batch, std::uint64_t seed, std::int64_t epoch) {
  data::CounterRandom random(seed, static_cast<std::uint64_t>(epoch));
  Examples order(examples.begin(), examples.end());
  shuffle(std::span(order), random);
  const auto mean = std::accumulate(examples.begin(), examples.end(), 0.0,
                                    [&](double sum, std::size_t i) { return sum + static_cast<double>(lengths[i]); }) /
                    std::max<double>(1.0, static_cast<double>(examples.size()));
  auto per_batch = static_cast<double>(batch.size);
  if (batch.tokens > 0) {
    per_batch = std::clamp(static_cast<double>(batch.tokens) / std::max(mean, 1.0), 1.0, per_batch);
  }
  const auto bucket = static_cast<std::size_t>(static_cast<double>(batch.bucket) * per_batch);
  std::vector<Examples> batches;
  for (std::size_t first = 0; first < order.size(); first += bucket) {
    const auto part = std::span(order).subspan(first, std::min(bucket, order.size() - first));
    std::stable_sort(part.begin(), part.end(), [&](std::size_t a, std::size_t b) { return lengths[a] < lengths[b]; });
    auto cuts = cut(part, lengths, batch);
    shuffle(std::span(cuts), random);
    std::move(cuts.begin(), cuts.end(), std::back_inserter(batches));
  }
  return batches;
}

std::vector<Examples> plan_in_order(std::span<const std::size_t> examples, std::span<const std::int64_t> lengths,
                                    const config::BatchConfig& batch) {
  return cut(examples, lengths, batch);
}

std::vector<Examples> plan_by_length(std::span<const std::size_t> examples, std::span<const std::int64_t> lengths,
                                     std::int64_t places) {
  Examples order(examples.begin(), examples.end());
  std::ranges::stable_sort(order, {}, [&](std::size_t example) { return lengths[example]; });
  std::vector<Examples> batches;
  for (const auto example : order) {
    if (batches.empty() || (std::ssize(batches.back()) + 1) * std::max<std::int64_t>(lengths[example], 1) > places) {
      batches.emplace_back();
    }
    batches.back().push_back(example);
  }
  return batches;
}

Batch Batch::to(at::Device device) const {
  return changed(*this, [device](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); });
}

Batch Batch::pinned() const {
  return changed(*this, [](const at::Tensor& tensor) { return tensor.pin_memory(); });
}

at::Tensor standardised(const at::Tensor& values, const data::ChannelStatistics* statistics) {
  if (statistics == nullptr) {
    return without_nan(values);
  }
  const auto mean = torch::tensor(statistics->mean, at::kDouble);
  const auto deviation = torch::tensor(statistics->deviation, at::kDouble);
  const auto divisor = torch::where(deviation > 0, deviation, torch::ones_like(deviation));
  return without_nan(((values.to(at::kDouble) - mean) / divisor).to(at::kFloat));
}

Batch collate(const data::CachedSet& set, std::span<const std::size_t> examples,
              const data::ChannelStatistics* standardise) {
  return pack(examples.size(), set.encoding(), standardise, [&](std::size_t i) { return set.example(examples[i]); });
}

Batch collate(std::span<const data::Encoded> examples, const data::Encoding& encoding,
              const data::ChannelStatistics* standardise) {
  return pack(examples.size(), encoding, standardise,
              [&](std::size_t i) -> const data::Encoded& { return examples[i]; });
}

}  // namespace dba::train
