// Trains a small classifier on ListOps and says how many updates a second it makes and what share of the time it waits
// for data. All in one run, in a temporary folder.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "dba/data/listops.h"
#include "dba/train/trainer.h"

namespace {

namespace fs = std::filesystem;

/// A folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "dba-bench-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    fs::remove_all(path_);
  }
  const fs::path& path() const {
    return path_;
  }

 private:
  fs::path path_;
};

void train(benchmark::State& state, const std::string& method) {
  const TemporaryFolder folder;
  dba::data::ListOpsOptions data;
  data.min_length = 100;
  data.max_length = 500;
  data.train = 2000;
  data.validation = 100;
  data.test = 1;
  dba::data::generate_listops(folder.path(), data);

  dba::config::TrainConfig config;
  config.device = "cpu";
  config.data.train = folder.path() / "basic_train.tsv";
  config.data.validation = folder.path() / "basic_val.tsv";
  config.data.format = "listops";
  config.data.tokeniser = "whitespace";
  config.data.cache = folder.path();
  config.model.method = method;
  config.model.d = 64;
  config.schedule.warmup = 10;
  config.train.updates = 60;
  config.batch.size = 16;
  int run = 0;
  double updates = 0, seconds = 0, waited = 0;
  for (auto _ : state) {
    auto run_folder = dba::run::RunFolder::create(folder.path() / ("run" + std::to_string(run++)));
    dba::train::TrainOptions options;
    options.progress.quiet = true;
    const auto report = nlohmann::json::parse(dba::train::train(config, run_folder, options).report);
    updates += report.at("updates").get<double>();
    seconds += report.at("seconds").get<double>();
    waited += report.at("share_of_time_waiting_for_data").get<double>() * report.at("seconds").get<double>();
  }
  state.counters["updates_per_second"] = updates / seconds;
  state.counters["percent_waiting_for_data"] = 100 * waited / seconds;
}

}  // namespace

BENCHMARK_CAPTURE(train, dba, "dba")->Iterations(2)->Unit(benchmark::kSecond);
BENCHMARK_CAPTURE(train, softmax, "softmax")->Iterations(2)->Unit(benchmark::kSecond);
BENCHMARK_MAIN();
