#include "dba/train/baselines.h"

#include <torch/torch.h>

#include <algorithm>

namespace dba::train {
namespace {

/// Shares of the symbols and the log of the length; for series the means and mean squares of the channels.
at::Tensor features(const data::CachedSet& set) {
  const auto& encoding = set.encoding();
  const bool series = encoding.kind == data::Kind::series;
  const auto symbols = static_cast<std::int64_t>(series ? 2 * encoding.channels : encoding.tokeniser.vocabulary_size());
  const auto blocks = encoding.kind == data::Kind::pairs ? 2 : 1;
  auto result = torch::zeros({static_cast<std::int64_t>(set.size()), blocks * symbols + 1});
  auto cell = result.accessor<float, 2>();
  for (std::size_t i = 0; i < set.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const auto view = set.example(i);
    if (series) {
      const auto channels = encoding.channels;
      const auto steps = std::max<std::size_t>(view.values.size() / channels, 1);
      for (std::size_t k = 0; k < view.values.size(); ++k) {
        const auto channel = static_cast<std::int64_t>(k % channels);
        cell[row][channel] += view.values[k] / static_cast<float>(steps);
        cell[row][channel + static_cast<std::int64_t>(channels)] +=
            view.values[k] * view.values[k] / static_cast<float>(steps);
      }
      cell[row][symbols] = std::log1p(static_cast<float>(steps));
      continue;
    }
    for (const auto& [part, first] : {std::pair(view.first, std::int64_t{0}), std::pair(view.second, symbols)}) {
      for (const auto symbol : part) {
        cell[row][first + symbol] += 1.0f / static_cast<float>(part.size());
      }
    }
    cell[row][blocks * symbols] = std::log1p(static_cast<float>(view.first.size() + view.second.size()));
  }
  return result;
}

at::Tensor labels_of(const data::CachedSet& set) {
  const auto labels = set.labels();
  return torch::tensor(std::vector<std::int64_t>(labels.begin(), labels.end()), at::kLong);
}

}  // namespace

Baselines measure_baselines(const data::CachedSet& training, const data::CachedSet& test) {
  Baselines baselines;
  const auto counts = training.class_counts();
  const auto majority = std::max_element(counts.begin(), counts.end()) - counts.begin();
  const auto truth = labels_of(test);
  baselines.majority = truth.eq(static_cast<std::int64_t>(majority)).to(at::kDouble).mean().item<double>();

  const auto x = features(training);
  const auto mean = x.nanmean(0).nan_to_num();  // a channel may have no value in a series, or in none
  const auto deviation = torch::where(x.isnan(), mean, x).std(0).clamp_min(1e-6);
  const auto standardise = [&](const at::Tensor& rows) { return ((rows - mean) / deviation).nan_to_num(); };
  const auto standardised = standardise(x);
  const auto target = labels_of(training);
  auto weight = torch::zeros({x.size(1), std::ssize(counts)}, torch::requires_grad());
  auto bias = torch::zeros({std::ssize(counts)}, torch::requires_grad());
  torch::optim::LBFGS optimiser({weight, bias},
                                torch::optim::LBFGSOptions(1).max_iter(200).line_search_fn("strong_wolfe"));
  optimiser.step([&] {
    optimiser.zero_grad();
    const auto logits = standardised.matmul(weight) + bias;
    // A little ridge keeps separable data from growing without end.
    auto loss = torch::nn::functional::cross_entropy(logits, target) + 1e-4 * weight.square().sum();
    loss.backward();
    return loss;
  });
  const torch::NoGradGuard no_grad;
  const auto logits = standardise(features(test)).matmul(weight) + bias;
  baselines.regression = logits.argmax(1).eq(truth).to(at::kDouble).mean().item<double>();
  return baselines;
}

}  // namespace dba::train
