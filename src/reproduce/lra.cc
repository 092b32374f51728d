#include <algorithm>
#include <array>
#include <string_view>

#include "dba/data/lra.h"
#include "reproduce/experiment.h"
#include "reproduce/paper_lra.h"

namespace dba::reproduce {
namespace {

struct LraTask {
  std::string name, title;
  std::int64_t training_examples = 0;  // of the data that the paper's figures are for, less what is held out here
  std::vector<std::pair<std::string, std::string>> data;
};

/// The tasks with their data in all layouts that the readers know.
const std::vector<LraTask>& lra_tasks() {
  static const std::vector<LraTask> tasks = [] {
    std::vector<LraTask> known = {{"listops", "ListOps", 0, {}},
                                  {"text", "Text", 0, {}},
                                  {"retrieval", "Retrieval", 0, {}},
                                  {"image", "Image", 0, {}},
                                  {"pathfinder", "Pathfinder", 0, {}}};
    for (const data::LraPart& part : data::find_lra({})) {
      auto& task = *std::ranges::find(known, part.task, &LraTask::name);
      std::string layouts;
      for (const std::string& layout : part.layouts)
        layouts += (layouts.empty() ? "" : "|") + layout;
      task.data.emplace_back("data." + part.part, layouts);
      if (part.part == "train")
        task.training_examples = static_cast<std::int64_t>(part.published);
    }
    // Text has no validation part: a tenth of the training part is held out.
    auto& text = *std::ranges::find(known, "text", &LraTask::name);
    text.training_examples -= text.training_examples / 10;
    return known;
  }();
  return tasks;
}

constexpr std::int64_t kSciSummPairs = 3'332;

std::string other_data(const std::string& task, std::int64_t training_examples) {
  const auto found = std::ranges::find(lra_tasks(), task, &LraTask::name);
  if (found == lra_tasks().end() || found->training_examples == training_examples)
    return "";
  const std::string count = std::to_string(training_examples) + " training examples";
  if (task == "retrieval" && training_examples == kSciSummPairs)
    return "SciSumm stand-in, " + count + ": not AAN";
  return count + " instead of " + std::to_string(found->training_examples);
}

/// Those with a configuration of their own; every other method takes that of `dba` with another model.method.
constexpr std::array<std::string_view, 3> kOwnConfigurations = {"dba", "dba_released", "softmax"};

std::optional<Run> run_of(const Task& task, const Method& method, const std::string& variant, std::int64_t seed) {
  const bool own = std::ranges::find(kOwnConfigurations, method.name) != kOwnConfigurations.end();
  Run run{task.name, method.name, variant, seed, task.name + "_" + (own ? method.name : "dba") + ".yaml", {}, {}};
  run.data = std::ranges::find(lra_tasks(), task.name, &LraTask::name)->data;
  if (method.name == "dba_full_map") {
    run.overrides = {"model.compress_length=false"};
  } else if (method.name == "dba_full_width") {
    run.overrides = {"model.compress_width=false"};
  } else if (!own) {
    run.overrides = {"model.method=" + method.name};
  }
  if (!own) {  // what is expected of a good run is expected of DBA
    run.overrides.insert(run.overrides.end(), {"expect.update=0", "expect.accuracy=0"});
  }
  if (task.name == "text")
    run.overrides.emplace_back(kWatchTest);
  return run;
}

}  // namespace

Experiment lra() {
  Experiment experiment;
  experiment.name = "lra";
  experiment.title = "Long-Range Arena";
  experiment.description =
      "Test accuracy in percent. The paper's figures are those of table 3 of arXiv 2211.16368, for the variants "
      "without "
      "compression those of its table 11; it quotes its other methods, softmax attention among them, from other "
      "papers. Here every method has the same recipe, Luna's (see `docs/lra.md`), and differs in the attention alone. "
      "`dba generate` makes ListOps and Pathfinder by the rules of the benchmark; its release holds other draws.";
  experiment.data_folder = "data/lra";
  experiment.data_help =
      "listops/, aclImdb/, aan/, cifar10_gray_{train,test}.bin, pathfinder32.bin, or other layouts of them "
      "(docs/lra.md)";
  experiment.task_word = "task";
  for (const LraTask& task : lra_tasks())
    experiment.tasks.push_back({task.name, task.title});
  experiment.methods = {{"dba", "DBA `paper`", "dba"},
                        {"dba_released", "DBA `released`", "dba"},
                        {"softmax", "softmax", "softmax"},
                        {"dba_full_map", "DBA, n not compressed", "dba_full_map", true},
                        {"dba_full_width", "DBA, d not compressed", "dba_full_width", true}};
  for (const char* name :
       {"local", "sparse", "longformer", "bigbird", "linformer", "reformer", "sinkhorn", "synthesizer", "linear",
        "performer", "cosformer", "fnet", "nystromformer", "yoso", "scatterbrain", "pixelfly", "luna", "flowformer"})
    experiment.methods.push_back({name, name, name, true});
  experiment.decimals = 2;
  experiment.paper = paper_lra_figures();
  experiment.other_data = other_data;
  experiment.sections = {
      {"", "honest", "Chosen on validation data",
       "The update with the highest validation accuracy; the test set had no say. For Text, where the benchmark has no "
       "validation part, a tenth of the training reviews is held out; the paper's figures of Text were chosen on the "
       "test reviews.",
       true},
      {"", "as_published", "Text as published: chosen on the test set",
       "The same runs, the update with the highest test accuracy: the benchmark uses the test reviews of Text as "
       "validation data. A figure to set beside published ones, not what new reviews may expect.",
       true}};
  experiment.run = run_of;
  return experiment;
}

}  // namespace dba::reproduce
