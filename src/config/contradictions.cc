#include <stdexcept>
#include <utility>

#include "dba/config/config_file.h"
#include "dba/data/data_path.h"

namespace dba::config {
namespace {

/// Of two parts of one file, both in percent or both in records; or of a part and the whole.
bool parts_overlap(const std::string& one, const std::string& other) {
  const auto first = data::DataPath::parse(one);
  const auto second = data::DataPath::parse(other);
  if (one == other || first.path != second.path)
    return false;
  if (first.part.whole || second.part.whole)
    return true;
  return first.part.percent == second.part.percent && first.part.begin < second.part.end &&
         second.part.begin < first.part.end;
}

}  // namespace

std::vector<std::string> contradictions(const TrainConfig& config) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, const std::string& sentence) {
    if (!holds)
      found.push_back(sentence);
  };
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  const DataConfig& data = config.data;
  const ScheduleConfig& schedule = config.schedule;
  const ModelConfig& model = config.model;
  const LoopConfig& train = config.train;

  require(!data.train.empty(), "There are no training data: set data.train to a file.");
  require(train.updates > 0 || train.epochs > 0,
          "Nothing says how long to train: set train.updates or train.epochs above 0.");
  require(model.d % model.heads == 0, "model.d (" + number(model.d) + ") must be divisible by model.heads (" +
                                          number(model.heads) + "), for every head takes an equal share.");
  require(model.method != "dba" || model.form == "paper" || (model.compress_length && model.compress_width),
          "model.compress_length and model.compress_width can be false in model.form paper only.");
  require(model.method != "dba" || model.form == "paper" || model.normalise == "softmax",
          "model.normalise linear belongs to model.form paper; released knows softmax only.");
  require(config.precision == "float32" || config.device != "cpu",
          "precision bfloat16 needs a GPU: set device to cuda or auto, or precision to float32.");

  require(train.updates == 0 || schedule.warmup <= train.updates,
          "schedule.warmup (" + number(schedule.warmup) + ") must not exceed train.updates (" + number(train.updates) +
              "), or the learning rate never gets to its height.");
  require(schedule.name != "inverse_sqrt" || schedule.warmup > 0,
          "schedule.name inverse_sqrt counts in lengths of the warm-up: set schedule.warmup above 0.");
  require(schedule.warmup_from <= config.optimiser.lr, "schedule.warmup_from must not exceed optimiser.lr.");
  require(schedule.name != "steps" || !schedule.milestones.empty(),
          "schedule.name steps needs schedule.milestones, the updates at which the learning rate falls.");
  require(schedule.name == "steps" || schedule.milestones.empty(),
          "schedule.milestones belong to schedule.name steps.");
  require(schedule.milestones.empty() || train.updates == 0 || schedule.milestones.back() < train.updates,
          "The last of schedule.milestones must come before the end, train.updates (" + number(train.updates) + ").");

  require(!data.validation.empty() || data.validation_fraction > 0 || config.protocol != "honest",
          "No data are left to choose the best model by: set data.validation or data.validation_fraction above 0.");
  require(config.protocol != "honest" || data.test.empty() || data.validation != data.test,
          "data.validation and data.test are the same file: choosing the model on the test set needs protocol "
          "as_published.");
  require(config.protocol == "as_published" || data.test.empty() || data.train != data.test,
          "data.train and data.test are the same file: a test on training data says nothing.");
  for (const auto& [key, path] : {std::pair("data.validation", data.validation), std::pair("data.test", data.test)}) {
    require(!parts_overlap(data.train, path), "data.train (" + data.train + ") and " + key + " (" + path +
                                                  ") share records: let one part end where the other begins.");
  }
  require(config.protocol != "honest" || !parts_overlap(data.validation, data.test),
          "data.validation (" + data.validation + ") and data.test (" + data.test +
              ") share records: choosing the model on the test set needs protocol as_published.");
  require(config.protocol != "as_published" || !data.test.empty(),
          "protocol as_published chooses the model on the test set: set data.test.");
  require(config.protocol != "last_epoch" || train.patience == 0,
          "protocol last_epoch trains to the end and chooses nothing: set train.patience to 0.");
  require(!train.watch_test || !data.test.empty(), "train.watch_test needs a test set: set data.test.");
  require(data.second_text_column.empty() || data.second_text_column != data.text_column,
          "data.second_text_column and data.text_column are the same column.");
  require(data.label_column != data.text_column, "data.label_column and data.text_column are the same column.");
  require(data.case_column != data.time_column, "data.case_column and data.time_column are the same column.");
  const std::int64_t symbols = data.tokeniser == "byte" ? 256 : data.integers > 0 ? data.integers : 1 << 24;
  require(data.leave_out.empty() || data.tokeniser != "whitespace",
          "data.leave_out belongs to data.tokeniser byte or integer: the symbols of whitespace are words.");
  require(data.leave_out.empty() || data.tokeniser == "whitespace" || data.leave_out.back() < symbols,
          "data.leave_out must hold symbols of data.tokeniser " + data.tokeniser + ", which are below " +
              number(symbols) + ", got " + number(data.leave_out.empty() ? 0 : data.leave_out.back()) + ".");
  require(
      data.leave_out.empty() || model.pooling != "flatten",
      "model.pooling flatten needs every symbol in its place: set model.pooling to mean or first, or data.leave_out "
      "to [].");
  require(!data.label_column.empty(), "data.label_column is empty: name the column of the label.");

  require(!train.new_head || !train.init_from.empty(), "train.new_head needs a trained model: set train.init_from.");
  require(train.checkpoint_every > 0 || train.checkpoint_seconds > 0,
          "No checkpoint would be written: set train.checkpoint_every or train.checkpoint_seconds above 0.");
  require(config.expect.update > 0 || config.expect.accuracy == 0,
          "expect.accuracy needs expect.update, the update by which it should have been reached.");
  return found;
}

void check_config(const TrainConfig& config, const std::string& source) {
  const auto found = contradictions(config);
  if (found.empty())
    return;
  std::string message = source + ": the settings do not fit together";
  for (const std::string& sentence : found)
    message += "\n  " + sentence;
  throw std::invalid_argument(message);
}

}  // namespace dba::config
