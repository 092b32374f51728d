#include "train/resident_set.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>

namespace dba::train {
namespace {

at::ScalarType symbol_type(std::size_t vocabulary) {
  return vocabulary <= 1u << 8 ? at::kByte : vocabulary <= 1u << 15 ? at::kShort : at::kInt;
}

constexpr auto kPositions = at::kInt;

/// At most 1/parts more, or up to the next multiple of 64 where that is further. Between n and 2n there are `parts`
/// such numbers.
std::int64_t rounded_up(std::int64_t value, std::int64_t parts) {
  constexpr std::int64_t kLeast = 64;
  const auto below =
      static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1))));
  const auto step = std::max(below / parts, kLeast);
  return (value + step - 1) / step * step;
}

/// Sequences one behind the other in host memory, before they travel.
class Laid {
 public:
  Laid(std::int64_t tokens, std::int64_t channels, at::ScalarType type) {
    // One more than there are: a batch without a single token has something to point at.
    tokens_ = channels > 0 ? torch::zeros({tokens + 1, channels}, type) : torch::zeros({tokens + 1}, type);
  }
  void add(const data::SymbolSpan& symbols, const data::Tokeniser& tokeniser) {
    const auto write = [&](auto* into) { return write_tokens(symbols, tokeniser, into); };
    switch (tokens_.scalar_type()) {
      case at::kByte:
        return add<std::uint8_t>(1, write);
      case at::kShort:
        return add<std::int16_t>(1, write);
      default:
        return add<std::int32_t>(1, write);
    }
  }
  void add(std::span<const float> values, std::int64_t channels) {
    add<float>(channels, [&](float* into) { return std::ranges::copy(values, into).out; });
  }

  at::Tensor tokens_;
  at::Tensor positions_;  ///< defined where symbols are left out
  std::vector<std::int64_t> begins_, lengths_;

 private:
  /// write: puts a sequence there and returns its end.
  template <class Number, class Write>
  void add(std::int64_t width, Write write) {
    auto* const into = tokens_.mutable_data_ptr<Number>() + at_ * width;
    const std::int64_t length = (write(into) - into) / width;
    begins_.push_back(at_);
    lengths_.push_back(length);
    at_ += length;
  }
  template <class Number>
  Number* write_tokens(const data::SymbolSpan& symbols, const data::Tokeniser& tokeniser, Number* into) {
    if (!tokeniser.leaves_any_out()) {
      return symbols.copy(into);
    }
    if (!positions_.defined()) {
      positions_ = torch::zeros_like(tokens_, kPositions);
    }
    auto* place = positions_.mutable_data_ptr<std::int32_t>() + at_;
    data::each_token(tokeniser, symbols, [&](std::int32_t symbol, std::int64_t position) {
      *into++ = static_cast<Number>(symbol);
      *place++ = static_cast<std::int32_t>(position);
    });
    return into;
  }

  std::int64_t at_ = 0;
};

}  // namespace

at::Tensor ready_to_send(const std::vector<std::int64_t>& numbers, at::Device device) {
  auto tensor = torch::tensor(numbers, at::kLong);
  return device.is_cpu() ? tensor : tensor.pin_memory();
}

at::Tensor sent(const std::vector<std::int64_t>& numbers, at::Device device) {
  return ready_to_send(numbers, device).to(device, /*non_blocking=*/true);
}

std::int64_t ResidentSet::bytes(const data::CachedSet& set) {
  constexpr std::int64_t kNumbersOfAnExample = 3;
  const auto& encoding = set.encoding();
  const auto width = encoding.kind == data::Kind::series
                         ? encoding.channels * sizeof(float)
                         : c10::elementSize(symbol_type(encoding.tokeniser.vocabulary_size())) +
                               (encoding.tokeniser.leaves_any_out() ? c10::elementSize(kPositions) : 0);
  std::int64_t tokens = 0;
  for (const auto length : set.lengths()) {
    tokens += length;
  }
  return tokens * static_cast<std::int64_t>(width) +
         static_cast<std::int64_t>(set.size()) * kNumbersOfAnExample * static_cast<std::int64_t>(sizeof(std::int64_t));
}

bool belongs_on(at::Device device, const data::CachedSet& set, const std::string& on_device) {
  constexpr std::size_t kPartOfFreeMemory = 4;
  if (on_device != "auto") {
    return on_device == "always";
  }
  if (!device.is_cuda()) {
    return false;
  }
  const auto free = at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
  return static_cast<std::size_t>(ResidentSet::bytes(set)) <= free / kPartOfFreeMemory;
}

bool streams(const config::ModelConfig& model) {
  return model.method == "dba" && model.compress_length;
}

namespace {

/// Rounded on a GPU for attentions that take packed batches as they are, and for all where every sequence of the set is
/// short.
Rows rows_for(const config::TrainConfig& config, at::Device device, std::span<const std::int64_t> lengths) {
  // Up to here the launches of a step take longer than what the rounding adds to padded batches.
  constexpr std::int64_t kShort = 256;
  const auto is_short = [](std::int64_t length) { return length <= kShort; };
  // FlashAttention takes packed batches in half precision.
  const bool packs = streams(config.model) || (config.model.method == "softmax" && config.precision == "bfloat16");
  return device.is_cuda() && (packs || std::ranges::all_of(lengths, is_short)) ? Rows::rounded : Rows::exact;
}

}  // namespace

std::shared_ptr<const ResidentSet> put_on(at::Device device, const data::CachedSet& set, const ModelPlan& plan) {
  if (!belongs_on(device, set, plan.config.batch.on_device)) {
    return nullptr;
  }
  const auto rows = rows_for(plan.config, device, set.lengths());
  return std::make_shared<ResidentSet>(set, plan.statistics(), device, rows);
}

ResidentSet::ResidentSet(const data::CachedSet& set, const data::ChannelStatistics* standardise, at::Device device,
                         Rows rows)
    : rows_(rows), pairs_(set.kind() == data::Kind::pairs) {
  const bool series = set.kind() == data::Kind::series;
  const auto channels = series ? static_cast<std::int64_t>(set.encoding().channels) : 0;
  const auto& tokeniser = set.encoding().tokeniser;
  const auto type = series ? at::kFloat : symbol_type(tokeniser.vocabulary_size());
  std::int64_t first_tokens = 0, second_tokens = 0;
  for (std::size_t i = 0; i < set.size(); ++i) {
    const auto example = set.example(i);
    first_tokens += series ? std::ssize(example.values) / channels : data::count_tokens(tokeniser, example.first);
    second_tokens += data::count_tokens(tokeniser, example.second);
  }
  Laid first(first_tokens, channels, type), second(second_tokens, 0, pairs_ ? type : at::kByte);
  for (std::size_t i = 0; i < set.size(); ++i) {
    const auto example = set.example(i);
    if (series) {
      first.add(example.values, channels);
    } else {
      first.add(example.first, tokeniser);
    }
    if (pairs_) {
      second.add(example.second, tokeniser);
    }
  }
  if (series) {
    first.tokens_ = standardised(first.tokens_, standardise);
  }
  const auto place = [device](Stream& stream, Laid& laid) {
    stream.tokens = laid.tokens_.to(device);
    stream.positions = laid.positions_.defined() ? laid.positions_.to(device) : at::Tensor();
    stream.begin = torch::tensor(laid.begins_, at::kLong).to(device);
    stream.lengths = std::move(laid.lengths_);
    stream.longest = stream.lengths.empty() ? 0 : *std::ranges::max_element(stream.lengths);
  };
  place(first_, first);
  if (pairs_) {
    place(second_, second);
  }
  labels_ = torch::tensor(set.labels(), at::kInt).to(at::kLong).to(device);
}

BatchLayout::Stream ResidentSet::layout(const Stream& stream, std::span<const std::size_t> examples) const {
  BatchLayout::Stream layout;
  layout.equal = !examples.empty();
  for (const auto example : examples) {
    const auto length = stream.lengths[example];
    layout.rows += length;
    layout.longest = std::max(layout.longest, length);
    layout.equal = layout.equal && length > 0 && length == stream.lengths[examples.front()];
  }
  if (!layout.equal && rows_ == Rows::rounded) {
    constexpr std::int64_t kRowSteps = 16, kLengthSteps = 4;
    layout.rows = rounded_up(layout.rows, kRowSteps);
    layout.longest = std::min(rounded_up(layout.longest, kLengthSteps), stream.longest);
  }
  return layout;
}

BatchLayout ResidentSet::layout(std::span<const std::size_t> examples) const {
  BatchLayout result;
  result.count = std::ssize(examples);
  result.first = layout(first_, examples);
  if (pairs_) {
    result.second = layout(second_, examples);
  }
  return result;
}

std::vector<std::int64_t> ResidentSet::numbers(std::span<const std::size_t> examples) const {
  std::vector<std::int64_t> numbers(examples.begin(), examples.end());
  const auto add_bounds = [&](const Stream& stream) {
    std::int64_t bound = 0;
    numbers.push_back(bound);
    for (const auto example : examples) {
      numbers.push_back(bound += stream.lengths[example]);
    }
  };
  add_bounds(first_);
  if (pairs_) {
    add_bounds(second_);
  }
  return numbers;
}

std::int64_t ResidentSet::count_of_numbers(const BatchLayout& layout) const {
  return layout.count + (pairs_ ? 2 : 1) * (layout.count + 1);
}

void ResidentSet::gather(const Stream& stream, const at::Tensor& examples, const at::Tensor& bounds,
                         const BatchLayout::Stream& layout, at::Tensor& input, at::Tensor& positions,
                         Sequences& sequences) const {
  const auto count = examples.size(0);
  const auto begin = bounds.narrow(0, 0, count);
  const auto end = bounds.narrow(0, 1, count);
  sequences = {begin, end, layout.rows, layout.equal ? layout.longest : -1, layout.longest, true};
  const auto source = stream.begin.index_select(0, examples);
  at::Tensor index;
  if (layout.equal) {
    index = (source.unsqueeze(1) + torch::arange(layout.longest, source.options())).view(-1);
  } else {
    const auto row = torch::arange(layout.rows, source.options());
    // Trailing rows follow the last sequence; nobody reads what they point at.
    const auto sequence = torch::searchsorted(end, row, /*out_int32=*/false, /*right=*/true).clamp_max(count - 1);
    index = row + (source - begin).index_select(0, sequence);
    index = index.clamp_max(stream.tokens.size(0) - 1);
  }
  input = stream.tokens.index_select(0, index);
  if (!input.is_floating_point()) {
    input = input.to(at::kLong);
  }
  if (stream.positions.defined()) {
    positions = stream.positions.index_select(0, index).to(at::kLong);
  }
}

Batch ResidentSet::gather(const at::Tensor& numbers, const BatchLayout& layout) const {
  const auto count = layout.count;
  const auto examples = numbers.narrow(0, 0, count);
  Batch batch;
  gather(first_, examples, numbers.narrow(0, count, count + 1), layout.first, batch.input, batch.positions,
         batch.sequences);
  if (pairs_) {
    gather(second_, examples, numbers.narrow(0, 2 * count + 1, count + 1), layout.second, batch.second_input,
           batch.second_positions, batch.second_sequences);
  }
  batch.labels = labels_.index_select(0, examples);
  return batch;
}

Batch ResidentSet::batch(std::span<const std::size_t> examples) const {
  return gather(sent(numbers(examples), device()), layout(examples));
}

}  // namespace dba::train
