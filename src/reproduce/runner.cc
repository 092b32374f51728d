#include "reproduce/runner.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>
#include <list>
#include <optional>
#include <set>
#include <thread>

#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "dba/data/data_path.h"
#include "dba/run/signals.h"
#include "reproduce/child_process.h"
#include "reproduce/result.h"
#include "reproduce/table.h"
#include "run/folders.h"

namespace dba::reproduce {
namespace {

using Clock = std::chrono::steady_clock;

std::string best_of(const Result& result) {
  std::string text;
  for (const auto& [protocol, accuracy] : result.accuracy) {
    char part[64];
    std::snprintf(part, sizeof part, "%s%s %.1f", text.empty() ? "" : ", ", protocol.c_str(), 100 * accuracy);
    text += part;
  }
  return text.empty() ? "no test accuracy" : text;
}

/// A ready cache, DATA/task/train.cache for data.train, or the first of the names that is there, or the first one.
std::filesystem::path data_path(const Run& run, const std::string& key, const std::string& names,
                                const Places& places) {
  const auto ready = places.data / run.task / (key.substr(key.find('.') + 1) + ".cache");
  if (run::is_there(ready))
    return ready;
  for (std::size_t begin = 0; begin < names.size();) {
    const auto end = std::min(names.find('|', begin), names.size());
    const auto path = places.data / names.substr(begin, end - begin);
    if (run::is_there(data::DataPath::parse(path).path))
      return path;
    begin = end + 1;
  }
  return places.data / names.substr(0, names.find('|'));
}

bool falls_back(const Run& run, const Places& places, const RunnerOptions& options) {
  return !options.bfloat16 && config::load_config(places.configs / run.config).precision == "bfloat16";
}

/// Lines that stay, and on a terminal one below them that is redrawn.
class Screen {
 public:
  explicit Screen(bool quiet) : quiet_(quiet), terminal_(!quiet && ::isatty(STDERR_FILENO) == 1) {}
  ~Screen() {
    clear();
  }
  void line(const std::string& text) {
    if (quiet_)
      return;
    clear();
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  void status(std::string text) {
    if (!terminal_)
      return;
    winsize size{};
    const std::size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    text.resize(std::min(text.size(), width));
    std::fprintf(stderr, "\r\033[K%s", text.c_str());
    std::fflush(stderr);
    drawn_ = true;
  }

 private:
  void clear() {
    if (drawn_)
      std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }

  bool quiet_;
  bool terminal_;
  bool drawn_ = false;
};

struct Running {
  const Run* run;
  ChildProcess process;
  Clock::time_point started;
};

class Runner {
 public:
  Runner(const Experiment& experiment, std::span<const Run> runs, const Places& places, const RunnerOptions& options)
      : experiment_(experiment), runs_(runs), places_(places), options_(options), screen_(options.quiet) {}

  Outcome make() {
    const run::StopSignals signals;
    run::make_folders(places_.runs);
    run::make_folders(places_.results);
    auto waiting = what_to_make();
    while (!waiting.empty() || !running_.empty()) {
      if (time_left() < 0) {
        outcome_.unfinished += waiting.size();
        waiting.clear();
      }
      while (!waiting.empty() && running_.size() < options_.jobs && outcome_.signal == 0) {
        start(*waiting.front());
        waiting.pop_front();
      }
      collect();
      if (const int signal = run::StopSignals::received(); signal != 0 && outcome_.signal == 0) {
        outcome_.signal = signal;
        waiting.clear();
        screen_.line("stopping: " + std::to_string(running_.size()) + " runs finish their update and save");
        for (const Running& running : running_)
          running.process.signal(signal);
      }
      screen_.status(std::to_string(outcome_.finished) + " of " + std::to_string(runs_.size()) + " done, " +
                     std::to_string(running_.size()) + " at work" + names_at_work());
      if (!running_.empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return outcome_;
  }

 private:
  std::list<const Run*> what_to_make() {
    std::list<const Run*> waiting;
    std::set<std::string> told;
    for (const Run& run : runs_) {
      switch (state_of(run, places_)) {
        case State::finished:
          if (run::is_there(places_.result(run)))
            ++outcome_.finished;
          else
            keep_result(run);
          break;
        case State::no_data:
          ++outcome_.without_data;
          if (told.insert(run.task).second)
            tell_missing(run);
          break;
        case State::interrupted:
        case State::fresh:
          waiting.push_back(&run);
          break;
      }
    }
    if (!waiting.empty())
      screen_.line(std::to_string(outcome_.finished) + " of " + std::to_string(runs_.size()) + " runs are there, " +
                   std::to_string(waiting.size()) + " to make, " + std::to_string(options_.jobs) + " at a time");
    return waiting;
  }

  void tell_missing(const Run& run) {
    std::string files;
    for (const auto& path : missing_data(run, places_))
      files += (files.empty() ? "" : ", ") + path.string();
    screen_.line(run.task + ": skipped, there is no " + files + "; expected in " + places_.data.string() + ": " +
                 experiment_.data_help + " (name another folder with --data)");
  }

  void start(const Run& run) {
    try {
      const bool resumes = state_of(run, places_) == State::interrupted;
      std::vector<std::string> words = {options_.program};
      std::ranges::move(train_words(run, places_, options_), std::back_inserter(words));
      if (options_.seconds > 0)
        std::ranges::move(std::vector<std::string>{"--minutes", std::to_string(std::max(time_left(), 1e-3) / 60)},
                          std::back_inserter(words));
      std::vector<std::pair<std::string, std::string>> environment;
      if (options_.threads > 0)
        environment = {{"OMP_NUM_THREADS", std::to_string(options_.threads)}};
      const bool other_settings = resumes && (!options_.overrides.empty() || !options_.device.empty());
      const bool in_float32 = !resumes && falls_back(run, places_, options_);
      running_.push_back({&run, ChildProcess(words, environment, places_.log(run)), Clock::now()});
      screen_.line(run.name() + ": " + (resumes ? "goes on" : "starts") +
                   (other_settings ? " with the settings it began with" : "") +
                   (in_float32 ? " in float32, for bfloat16 needs a GPU" : ""));
    } catch (const std::exception& error) {  // a bad configuration is no reason to leave the others
      fail(run, error.what());
    }
  }

  void collect() {
    for (auto running = running_.begin(); running != running_.end();) {
      const auto status = running->process.poll();
      if (!status) {
        ++running;
        continue;
      }
      const Run& run = *running->run;
      const double seconds = std::chrono::duration<double>(Clock::now() - running->started).count();
      running = running_.erase(running);
      if (*status == 0)
        keep_result(run, seconds);
      else if (*status == run::kTimeIsOver)
        ++outcome_.unfinished;
      else if (outcome_.signal == 0)
        fail(run, "ended with status " + std::to_string(*status) + "; what it said is in " + places_.log(run).string());
    }
  }

  void keep_result(const Run& run, double seconds = 0) {
    try {
      const auto folder = places_.run_folder(run);
      const auto result = write_result(experiment_, run, folder, places_.result(run), options_.machine);
      // A finished run does not go on, and many of them fill a disk.
      for (const std::string& name : run::names_in(folder / "checkpoints"))
        run::remove_folder(folder / "checkpoints" / name);
      ++outcome_.finished;
      char time[32] = "";
      if (seconds > 0)
        std::snprintf(time, sizeof time, " in %.0f s", seconds);
      screen_.line("[" + std::to_string(outcome_.finished) + "/" + std::to_string(runs_.size()) + "] " + run.name() +
                   ": " + best_of(result) + time);
    } catch (const std::exception& error) {
      fail(run, error.what());
    }
  }

  double time_left() const {
    return options_.seconds > 0 ? options_.seconds - std::chrono::duration<double>(Clock::now() - called_).count()
                                : std::numeric_limits<double>::infinity();
  }

  void fail(const Run& run, const std::string& why) {
    outcome_.failures.push_back(run.name() + ": " + why);
    screen_.line(outcome_.failures.back());
  }

  std::string names_at_work() const {
    std::string names;
    for (const Running& running : running_) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - running.started).count();
      names += (names.empty() ? ": " : ", ") + running.run->name() + " " + std::to_string(seconds) + " s";
    }
    return names;
  }

  const Experiment& experiment_;
  std::span<const Run> runs_;
  const Places& places_;
  const RunnerOptions& options_;
  const Clock::time_point called_ = Clock::now();
  Screen screen_;
  std::list<Running> running_;
  Outcome outcome_;
};

}  // namespace

std::string to_string(State state) {
  switch (state) {
    case State::finished:
      return "finished";
    case State::interrupted:
      return "interrupted";
    case State::fresh:
      return "to do";
    case State::no_data:
      break;
  }
  return "no data";
}

std::vector<std::filesystem::path> missing_data(const Run& run, const Places& places) {
  std::vector<std::filesystem::path> missing;
  for (const auto& [key, names] : run.data) {
    const auto path = data::DataPath::parse(data_path(run, key, names, places)).path;
    if (!run::is_there(path))
      missing.push_back(path);
  }
  return missing;
}

State state_of(const Run& run, const Places& places) {
  if (run::is_there(places.result(run)) || run::is_there(places.run_folder(run) / "report.json"))
    return State::finished;
  if (!missing_data(run, places).empty())
    return State::no_data;
  return run::is_there(places.run_folder(run) / "config.yaml") ? State::interrupted : State::fresh;
}

std::vector<std::string> train_words(const Run& run, const Places& places, const RunnerOptions& options) {
  const auto folder = places.run_folder(run).string();
  if (state_of(run, places) == State::interrupted)
    return {"train", "--resume", folder};
  std::vector<std::string> words = {"train", "--config", (places.configs / run.config).string(), "--run", folder};
  const auto set = [&](const std::string& assignment) {
    words.emplace_back("--set");
    words.push_back(assignment);
  };
  for (const auto& [key, names] : run.data)
    set(key + "=" + data_path(run, key, names, places).string());
  // Runs of one task read the same data.
  set("data.cache=" + (places.runs / "cache" / run.task).string());
  set("seed=" + std::to_string(run.seed));
  for (const std::string& assignment : run.overrides)
    set(assignment);
  if (!options.device.empty())
    set("device=" + options.device);
  if (falls_back(run, places, options))
    set("precision=float32");
  if (options.threads > 0)
    set("threads=" + std::to_string(options.threads));
  for (const std::string& assignment : options.overrides)
    set(assignment);
  return words;
}

Outcome make_missing(const Experiment& experiment, std::span<const Run> runs, const Places& places,
                     const RunnerOptions& options) {
  return Runner(experiment, runs, places, options).make();
}

std::filesystem::path write_page(const Experiment& experiment, const Places& places) {
  run::make_folders(places.results);
  const auto file = places.results / "README.md";
  const std::string page = results_page(experiment, read_results(places.results));
  const std::array parts = {std::as_bytes(std::span(page))};
  bytes::atomic_write(file, parts);
  return file;
}

}  // namespace dba::reproduce
