#include "train/sets.h"

#include <c10/util/Exception.h>

#include <numeric>

#include "dba/data/split.h"
#include "dba/train/evaluate.h"

namespace dba::train {
namespace {

data::TokeniserOptions tokeniser_options(const config::DataConfig& data) {
  data::TokeniserOptions options;
  options.scheme = data::parse_scheme(data.tokeniser).value();
  options.cls = data.cls;
  options.eos = data.eos;
  options.max_length = static_cast<std::size_t>(data.max_length);
  options.too_long = data::parse_too_long(data.too_long).value();
  options.min_count = static_cast<std::size_t>(data.min_count);
  options.max_words = static_cast<std::size_t>(data.max_vocabulary);
  return options;
}

bool needs_a_longest(const config::ModelConfig& model) {
  return model.position == "learned" || model.pooling == "flatten";
}

std::vector<std::size_t> all_of(const data::CachedSet& set) {
  std::vector<std::size_t> examples(set.size());
  std::iota(examples.begin(), examples.end(), std::size_t{0});
  return examples;
}

std::string description(const std::string& name, const std::string& file, const data::CacheOutcome& outcome) {
  const auto& statistics = outcome.set.statistics();
  auto text = name + ": " + std::to_string(outcome.set.size()) + " examples of " + file + ", longest " +
              std::to_string(statistics.longest);
  if (statistics.cut > 0) {
    text += ", " + std::to_string(statistics.cut) + " cut";
  }
  if (statistics.repairs.missing_values > 0) {
    text += ", " + std::to_string(statistics.repairs.missing_values) + " missing values interpolated";
  }
  return outcome.built ? text + " (read anew: " + outcome.reason + ")" : text;
}

}  // namespace

Sets open_sets(const config::TrainConfig& config, const std::filesystem::path& folder,
               const std::function<void(const std::string&)>& say) {
  const auto& data = config.data;
  const auto cache = data.cache.empty() ? folder / "cache" : std::filesystem::path(data.cache);
  std::filesystem::create_directories(cache);
  data::CacheSource source;
  source.file = data.train;
  source.reader = reader_options(data);
  source.tokeniser = tokeniser_options(data);
  auto training = data::open_or_build(source, cache / "train.cache");
  say(description("training", data.train, training));

  ModelPlan plan;
  plan.config = config;
  plan.encoding = training.set.encoding();
  if (needs_a_longest(config.model)) {
    plan.longest = data.max_length > 0 ? data.max_length : static_cast<std::int64_t>(training.set.statistics().longest);
    // Longer sequences of other parts are cut or refused as the training part's would be.
    auto options = plan.encoding.tokeniser.options();
    options.max_length = static_cast<std::size_t>(plan.longest);
    plan.encoding.tokeniser = data::Tokeniser(options, plan.encoding.tokeniser.vocabulary());
  }
  if (plan.encoding.kind == data::Kind::series && data.standardise) {
    plan.standardise = training.set.channel_statistics();
  }

  Sets sets{plan, std::move(training.set), {}, std::nullopt, {}, "", data.test, cache};
  const bool published = config.protocol == "as_published";
  const auto validation_file = published ? data.test : data.validation;
  if (!validation_file.empty()) {
    source.file = validation_file;
    source.encoding = plan.encoding;
    auto outcome = data::open_or_build(source, cache / "validation.cache");
    say(description("validation", validation_file, outcome));
    sets.validation = std::move(outcome.set);
    sets.validation_examples = all_of(*sets.validation);
    sets.train_examples = all_of(sets.train);
    sets.validation_source = published ? "the test file, as published" : "the file " + validation_file;
  } else {
    const auto labels = sets.train.labels();
    auto split = data::hold_out(labels, data.validation_fraction, static_cast<std::uint64_t>(config.seed));
    sets.train_examples = std::move(split.kept);
    sets.validation_examples = std::move(split.held_out);
    sets.validation_source = "a part held out of the training file";
    say("validation: " + std::to_string(sets.validation_examples.size()) + " examples held out of the training file");
  }
  if (published) {
    say("protocol as_published: the model is chosen on the test file");
  }
  return sets;
}

}  // namespace dba::train
