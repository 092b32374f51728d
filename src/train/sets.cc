#include "train/sets.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bytes/count.h"
#include "data/label_remarks.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/bytes/mapped_file.h"
#include "dba/data/data_path.h"
#include "dba/data/formats.h"
#include "dba/data/split.h"
#include "dba/train/evaluate.h"
#include "dba/zoo.h"

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
  options.integers = static_cast<std::size_t>(data.integers);
  options.leave_out.assign(data.leave_out.begin(), data.leave_out.end());
  return options;
}

bool needs_a_longest(const config::ModelConfig& model) {
  return model.position == "learned" || model.pooling == "flatten" ||
         zoo::member(model.method).capabilities.needs_max_length;
}

constexpr const char* kSymbolsFile = "symbols.json";

/// What a fine-tuned model takes over from the trained one.
struct Inherited {
  data::Tokeniser tokeniser;
  std::int64_t longest = 0;
};

Inherited inherit(const config::TrainConfig& config, const std::filesystem::path& folder, bool resume) {
  const auto file = folder / kSymbolsFile;
  if (resume && std::filesystem::exists(file)) {
    const bytes::MappedFile mapped(file);
    const auto text = mapped.bytes();
    const auto json = nlohmann::json::parse(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()),
                                            nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("tokeniser") || !json.contains("longest")) {
      throw bytes::FormatError(file.string() + ": damaged; start the run again in a new folder");
    }
    return {data::Tokeniser::from_json(json["tokeniser"].get<std::string>(), file.string()),
            json["longest"].get<std::int64_t>()};
  }
  const auto plan = Model::read_plan(config.train.init_from);
  const nlohmann::json json{{"tokeniser", plan.encoding.tokeniser.to_json()}, {"longest", plan.longest}};
  const auto text = json.dump();
  const auto content = std::as_bytes(std::span(text));
  bytes::atomic_write(file, std::span(&content, 1));
  return {plan.encoding.tokeniser, plan.longest};
}

/// A wrong path is told before a large training file is read.
void check_paths(const config::DataConfig& data) {
  for (const auto& [key, path] :
       {std::pair("train", data.train), {"validation", data.validation}, {"test", data.test}}) {
    std::error_code unknown;
    if (!path.empty() && !std::filesystem::exists(data::DataPath::parse(path).path, unknown) && !unknown) {
      throw std::invalid_argument(std::string("data.") + key + ": there is no " + path +
                                  "; name a file or folder that is there (--set data." + key + "=…)");
    }
  }
}

data::Classes classes_of(const data::CachedSet& set) {
  data::Classes classes;
  const auto counts = set.class_counts();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    classes[set.encoding().labels.name(i)] = static_cast<std::uint64_t>(counts[i]);
  }
  return classes;
}

/// Those that the header of a training file lists; a cache knows of none.
std::vector<std::string> listed_classes(const std::string& file, const data::ReaderOptions& options) {
  return data::is_cache(file) ? std::vector<std::string>()
                              : data::make_reader(data::DataPath::parse(file).path, options)->listed_classes();
}

std::string description(const std::string& name, const std::string& file, const data::CacheOutcome& outcome) {
  const auto& statistics = outcome.set.statistics();
  auto text = name + ": " + bytes::counted(outcome.set.size(), "example") + " of " + file + ", ";
  if (name == "training") {
    text += bytes::counted(outcome.set.encoding().labels.size(), "class", "classes") + ", ";
  }
  text += "longest " + std::to_string(statistics.longest);
  if (statistics.cut > 0) {
    text += ", " + std::to_string(statistics.cut) + " cut";
  }
  if (statistics.repairs.missing_values > 0) {
    text += ", " + bytes::counted(statistics.repairs.missing_values, "missing value") + " filled";
  }
  if (statistics.repairs.empty_channels > 0) {
    text += ", " + bytes::counted(statistics.repairs.empty_channels, "channel") + " of a series without any value";
  }
  return outcome.built ? text + " (read anew: " + outcome.reason + ")" : text;
}

}  // namespace

std::vector<float> balanced_class_weights(const Sets& sets) {
  const auto labels = sets.train.labels();
  std::vector<double> count(sets.plan.encoding.labels.size(), 0.0);
  for (const auto example : sets.train_examples) {
    count[static_cast<std::size_t>(labels[example])] += 1;
  }
  const auto examples = static_cast<double>(sets.train_examples.size());
  const auto classes = static_cast<double>(count.size());
  std::vector<float> weights;
  for (const auto of_class : count) {
    weights.push_back(static_cast<float>(examples / (classes * of_class)));
  }
  return weights;
}

Sets open_sets(const config::TrainConfig& config, const std::filesystem::path& folder, bool resume,
               const std::function<void(const std::string&)>& say) {
  const auto& data = config.data;
  check_paths(data);
  const auto cache = data.cache.empty() ? folder / "cache" : std::filesystem::path(data.cache);
  std::filesystem::create_directories(cache);
  data::CacheSource source;
  source.file = data.train;
  source.reader = reader_options(data);
  source.tokeniser = tokeniser_options(data);
  if (!data.test.empty() && !data::is_cache(data.test)) {
    data::make_reader(data.test, source.reader);  // what is wrong with its header is told as early
  }
  std::optional<Inherited> inherited;
  if (!config.train.init_from.empty()) {
    inherited = inherit(config, folder, resume);
    auto learned = data::is_cache(data.train)
                       ? data::open_cache(data.train).encoding()
                       : data::learn_encoding(*data::make_reader(data.train, source.reader), source.tokeniser);
    if (inherited->tokeniser.options().leave_out != source.tokeniser.leave_out) {
      throw std::invalid_argument(
          "data.leave_out: must be that of the model in train.init_from (" + config.train.init_from +
          "), whose symbols are taken over; set it to the same list, or start without init_from");
    }
    learned.tokeniser = inherited->tokeniser;
    source.encoding = learned;
  }
  auto training = data::open_or_build(source, cache / "train.cache");
  say(description("training", data.train, training));
  const auto classes = classes_of(training.set);
  if (const auto doubt = data::written_in_two_ways(classes); !doubt.empty()) {
    say("warning: the training file has " + doubt);
  }
  const auto lacking = data::classes_without_examples(listed_classes(data.train, source.reader), classes);
  if (const auto doubt = data::without_examples(lacking); !doubt.empty()) {
    say("warning: the training file has " + doubt);
  }
  if (const auto constant = training.set.channel_statistics().constant(); !constant.empty()) {
    say("training: " + std::to_string(constant.size()) + " of " +
        bytes::counted(training.set.encoding().channels, "channel") + " constant, the first of them channel " +
        std::to_string(constant.front()) + "; what is constant tells nothing");
  }

  ModelPlan plan;
  plan.config = config;
  plan.encoding = training.set.encoding();
  if (needs_a_longest(config.model)) {
    plan.longest = inherited             ? inherited->longest
                   : data.max_length > 0 ? data.max_length
                                         : static_cast<std::int64_t>(training.set.statistics().longest);
    // Longer sequences of other parts are cut or refused as the training part's would be.
    auto options = plan.encoding.tokeniser.options();
    options.max_length = static_cast<std::size_t>(plan.longest);
    plan.encoding.tokeniser = data::Tokeniser(options, plan.encoding.tokeniser.vocabulary());
  }
  if (plan.encoding.kind == data::Kind::series && data.standardise) {
    plan.standardise = training.set.channel_statistics();
  }

  Sets sets{plan, std::move(training.set), {}, std::nullopt, {}, "", std::nullopt, lacking};
  const bool published = config.protocol == "as_published";
  const auto validation_file = published ? data.test : data.validation;
  if (!validation_file.empty()) {
    source.file = validation_file;
    source.encoding = plan.encoding;
    auto outcome = data::open_or_build(source, cache / (published ? "test.cache" : "validation.cache"));
    say(description("validation", validation_file, outcome));
    sets.validation = std::move(outcome.set);
    sets.validation_examples = all_examples(*sets.validation);
    sets.train_examples = all_examples(sets.train);
    sets.chosen_on = published ? "the test file, as published" : "the file " + validation_file;
  } else if (data.validation_fraction == 0) {
    sets.train_examples = all_examples(sets.train);
  } else {
    const auto labels = sets.train.labels();
    auto split = data::hold_out(labels, data.validation_fraction, static_cast<std::uint64_t>(config.seed));
    if (split.held_out.empty() || split.kept.empty()) {
      throw std::invalid_argument(data.train +
                                  ": too few examples of each class to hold any out for validation; name a file with "
                                  "data.validation");
    }
    sets.train_examples = std::move(split.kept);
    sets.validation_examples = std::move(split.held_out);
    sets.chosen_on = "a part held out of the training file";
    say("validation: " + bytes::counted(sets.validation_examples.size(), "example") + " held out of the training file");
  }
  if (published) {
    say("protocol as_published: the model is chosen on the test file");
  } else if (config.protocol == "last_epoch") {
    sets.chosen_on = "nothing: the last model is kept";
  }
  if (!data.test.empty()) {
    source.file = data.test;
    source.encoding = plan.encoding;
    auto outcome = data::open_or_build(source, cache / "test.cache");
    say(description("test", data.test, outcome));
    sets.test = std::move(outcome.set);
  }
  return sets;
}

}  // namespace dba::train
