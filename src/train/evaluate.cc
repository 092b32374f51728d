#include "dba/train/evaluate.h"

#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "train/autocast_step.h"
#include "train/prefetch.h"
#include "train/resident_set.h"

namespace dba::train {

at::Tensor infer(Model& model, const Batch& batch, at::Device device) {
  const torch::NoGradGuard no_grad;
  const AutocastStep autocast(device.type(), model.plan().config.precision == "bfloat16" && device.is_cuda());
  return model.forward(batch);
}

std::vector<std::size_t> all_examples(const data::CachedSet& set) {
  std::vector<std::size_t> examples(set.size());
  std::iota(examples.begin(), examples.end(), std::size_t{0});
  return examples;
}

namespace {

/// Without gradients there is room for more: the streaming passes take eight times as much, and short sequences come in
/// as large batches as fill a GPU, where a small one costs what a large one does. Attentions that pad get sequences of
/// similar lengths together, in as many places as a batch of training may have; the order of the examples is none of
/// the result's business.
std::vector<std::vector<std::size_t>> evaluation_batches(const config::TrainConfig& config, at::Device device,
                                                         std::span<const std::size_t> examples,
                                                         std::span<const std::int64_t> lengths) {
  constexpr std::int64_t kTimes = 8;
  constexpr std::int64_t kTokensThatFill = 1 << 17;
  const auto longest = std::max<std::int64_t>(lengths.empty() ? 0 : *std::ranges::max_element(lengths), 1);
  auto batch = config.batch;
  if (!streams(config.model)) {
    const auto places = batch.tokens > 0 ? std::min(batch.tokens, batch.size * longest) : batch.size * longest;
    return plan_by_length(examples, lengths, device.is_cuda() ? std::max(places, kTokensThatFill) : places);
  }
  if (device.is_cuda()) {
    batch.size = std::max(batch.size * kTimes, kTokensThatFill / longest);
    batch.tokens = batch.tokens > 0 ? std::max(batch.tokens * kTimes, kTokensThatFill) : 0;
  }
  return plan_in_order(examples, lengths, batch);
}

}  // namespace

Metrics evaluate(Model& model, const data::CachedSet& set, std::span<const std::size_t> examples, at::Device device,
                 const std::function<void(std::size_t)>& done, const ResidentSet* on_device) {
  const torch::NoGradGuard no_grad;
  const auto& config = model.plan().config;
  const auto* const statistics = model.plan().statistics();
  const bool was_training = model.module().is_training();
  model.module().eval();
  const auto batches = evaluation_batches(config, device, examples, set.lengths());
  std::shared_ptr<const ResidentSet> own;
  if (on_device == nullptr) {
    own = put_on(device, set, model.plan());
    on_device = own.get();
  }
  std::optional<Prefetcher> prefetcher;
  if (on_device == nullptr) {
    prefetcher.emplace(0, batches.size(), static_cast<std::size_t>(config.batch.prefetch),
                       [&](std::size_t i) { return collate(set, batches[i], statistics); });
  }
  MetricCounter counter(static_cast<std::int64_t>(model.plan().encoding.labels.size()), device);
  std::size_t count = 0;
  for (const auto& numbers : batches) {
    const auto batch = on_device != nullptr ? on_device->batch(numbers) : prefetcher->next()->to(device);
    counter.add(infer(model, batch, device), batch.labels);
    count += numbers.size();
    if (done) {
      done(count);
    }
  }
  model.module().train(was_training);
  return counter.result();
}

data::CachedSet open_set(const ModelPlan& plan, const std::filesystem::path& file, const std::filesystem::path& cache,
                         const std::optional<std::string>& format) {
  data::CacheSource source;
  source.file = file;
  source.reader = reader_options(plan.config.data);
  source.reader.format = format.value_or(source.reader.format);
  source.encoding = plan.encoding;
  return std::move(data::open_or_build(source, cache).set);
}

data::ReaderOptions reader_options(const config::DataConfig& data) {
  data::ReaderOptions options;
  options.format = data.format == "auto" ? "" : data.format;
  options.text = data.text_column;
  if (!data.second_text_column.empty()) {
    options.text1 = data.text_column;
    options.text2 = data.second_text_column;
  }
  options.label = data.label_column;
  options.case_column = data.case_column;
  options.time_column = data.time_column;
  return options;
}

at::Device choose_device(const std::string& name) {
  if (name == "cuda") {
    TORCH_CHECK(torch::cuda::is_available(),
                "dba: device is cuda, but PyTorch finds no usable GPU here; set device to auto or cpu");
  }
  return name == "cuda" || (name == "auto" && torch::cuda::is_available()) ? at::Device(at::kCUDA, 0)
                                                                           : at::Device(at::kCPU);
}

}  // namespace dba::train
