#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "reproduce/runner.h"
#include "scratch_folder.h"

namespace dba::reproduce {

/// Makes the folders above the file too.
inline void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// Two tasks and two methods, made by a shell script that behaves like `dba train`.
struct Small {
  bytes::ScratchFolder folder;
  Places places{folder / "data", folder / "configs", folder / "runs", folder / "results"};
  Experiment experiment;
  RunnerOptions options;

  /// `does`: what the script does once it knows $folder and $words.
  explicit Small(const std::string& does) {
    experiment.name = "small";
    experiment.title = "Small";
    experiment.task_word = "task";
    experiment.data_help = "two files";
    experiment.tasks = {{"apples", "Apples"}, {"pears", "Pears"}};
    experiment.methods = {{"dba", "DBA", "dba"}, {"softmax", "softmax", "transformer"}};
    experiment.seeds = {1};
    experiment.paper = {{"apples", "dba", 91.5, 0.25}, {"apples", "transformer", 90.0, {}}, {"pears", "dba", 70.0, {}}};
    experiment.sections = {{"", "honest", "Honest", "Chosen on validation.", false},
                           {"", "as_published", "As published", "Chosen on the test set.", true}};
    experiment.run = [](const Task& task, const Method& method, const std::string& variant, std::int64_t seed) {
      return Run{task.name,
                 method.name,
                 variant,
                 seed,
                 "one.yaml",
                 {"model.method=" + method.name},
                 {{"data.train", task.name + ".ts"}}};
    };
    write(folder / "data/apples.ts", "");
    write(folder / "data/pears.ts", "");
    write(folder / "configs/one.yaml", "seed: 7\n");
    write(folder / "program.sh",
          "#!/bin/sh\n"
          "words=\"$*\"\n"
          "while [ $# -gt 0 ]; do case $1 in --run|--resume) folder=$2;; --seeds) seeds=$2;; esac; shift; done\n"
          "mkdir -p $folder/checkpoints/step-00000001; echo \"$words\" >> $folder/words\n"
          "echo 'seed: 1' > $folder/config.yaml\n"
          "finish() {\n"
          "  echo '{\"step\": 1, \"part\": \"validation\", \"loss\": 0.123456, \"accuracy\": 0.5}' > "
          "$folder/metrics.jsonl\n"
          "  echo '{\"protocol\": \"honest\", \"commit\": \"abc\", \"version\": \"0\", \"torch\": \"2\", \"device\": "
          "\"cpu\", \"threads\": 1, \"precision\": \"float32\", \"seconds\": 3, \"updates\": 1, \"best_update\": 1, "
          "\"parameters\": 9, \"training_examples\": 5, \"model_chosen_on\": \"x\", \"protocols\": {\"honest\": "
          "{\"update\": 1, \"accuracy\": 0.5}, \"as_published\": {\"update\": 1, \"accuracy\": 0.75}}}' > "
          "$folder/report.json\n"
          "}\n" +
              does + "\n");
    ::chmod((folder / "program.sh").c_str(), 0755);
    options.program = (folder / "program.sh").string();
    options.jobs = 2;
    options.quiet = true;
  }

  std::vector<Run> runs(const Selection& selection = {}) const {
    return select_runs(experiment, selection);
  }
  Outcome make() const {
    return make_missing(experiment, runs(), places, options);
  }
  std::string words(const std::string& run) const {
    return bytes::contents(folder / "runs" / run / "words");
  }
};

}  // namespace dba::reproduce
