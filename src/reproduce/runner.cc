#include "reproduce/runner.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <list>
#include <optional>
#include <set>
#include <thread>

#include "bytes/count.h"
#include "bytes/listed.h"
#include "dba/bytes/atomic_write.h"
#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "dba/run/signals.h"
#include "reproduce/child_process.h"
#include "reproduce/found_parts.h"
#include "reproduce/log_tail.h"
#include "reproduce/result.h"
#include "reproduce/run_lock.h"
#include "reproduce/screen.h"
#include "reproduce/settings.h"
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

/// Runs of one configuration and several seeds in one process: the start of a program with a GPU takes seconds.
struct Running {
  std::vector<const Run*> runs;  // one after the other
  std::vector<RunLock> locks;    // of all of them
  LogTail log;
  ChildProcess process;
  Clock::time_point started;  // the run at work
  std::size_t done = 0;

  const Run& at_work() const {
    return *runs[std::min(done, runs.size() - 1)];
  }
};

/// ": …" with the reason of a failure, the last line of a log, and the log's name. A message of `dba` may go on over
/// indented lines.
std::string last_words(const std::filesystem::path& log) {
  std::ifstream file(log);
  std::string line, last;
  bool goes_on = false;
  while (std::getline(file, line)) {
    const auto begin = line.find_first_not_of(' ');
    if (begin == std::string::npos)
      continue;
    if (begin > 0 && last.starts_with("dba: ")) {
      if (!goes_on && last.ends_with(':'))
        last.pop_back();
      last += (goes_on ? "; " : ": ") + line.substr(begin);
      goes_on = true;
    } else {
      last = line;
      goes_on = false;
    }
  }
  return (last.empty() ? "" : ": " + last) + "; what it said is in " + log.string();
}

bool differ_in_seed_alone(const Run& one, const Run& other) {
  return one.task == other.task && one.method == other.method && one.variant == other.variant;
}

class Runner {
 public:
  Runner(const Experiment& experiment, std::span<const Run> runs, const Places& places, const RunnerOptions& options)
      : experiment_(experiment), runs_(runs), places_(places), options_(options), screen_(options.quiet) {}

  Outcome make() {
    const run::StopSignals signals;
    run::make_folders(places_.runs);
    run::make_folders(places_.results);
    waiting_ = what_to_make();
    while (!waiting_.empty() || !running_.empty()) {
      if (time_left() < 0) {
        outcome_.unfinished += waiting_.size();
        waiting_.clear();
      }
      while (!waiting_.empty() && running_.size() < options_.jobs && outcome_.signal == 0)
        start(next_group());
      collect();
      if (const int signal = run::StopSignals::received(); signal != 0 && outcome_.signal == 0) {
        outcome_.signal = signal;
        waiting_.clear();
        screen_.line(
            "stopping: " +
            bytes::counted(running_.size(), "run finishes its update and saves", "runs finish their update and save") +
            " (a second signal ends all at once)");
        for (const Running& running : running_)
          running.process.signal(signal);
      }
      screen_.status(std::to_string(outcome_.finished) + " of " + std::to_string(runs_.size()) + " done, " +
                     std::to_string(running_.size()) + " at work" + names_at_work());
      if (!running_.empty())
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    for (const Run* run : elsewhere_) {
      if (state_of(*run, places_) == State::finished)
        ++outcome_.finished;
      else
        outcome_.elsewhere.push_back(run->name());
    }
    return outcome_;
  }

 private:
  std::list<const Run*> what_to_make() {
    std::list<const Run*> waiting;
    std::set<std::string> told;
    for (const Run& run : runs_) {
      const ResultFile result = result_file(run, places_);
      const State state = state_of(run, places_, result);
      if (result == ResultFile::damaged)
        screen_.line(places_.result(run).string() + ": damaged; " +
                     (state == State::finished  ? "it is written anew from the run's report"
                      : state == State::no_data ? "fetch it again, or delete it"
                                                : "the run is made again"));
      if (state != State::finished)
        tell_damaged_report(run, state);
      switch (state) {
        case State::finished:
          count_finished(run, result);
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
      screen_.line(std::to_string(outcome_.finished) + " of " +
                   bytes::counted(runs_.size(), "run is there, ", "runs are there, ") + std::to_string(waiting.size()) +
                   " to make, " + std::to_string(options_.jobs) + " at a time");
    return waiting;
  }

  void tell_damaged_report(const Run& run, State state) {
    const std::string fault = report_fault(places_.run_folder(run));
    if (fault.empty())
      return;
    const bool goes_on = state == State::interrupted && !run::names_in(places_.run_folder(run) / "checkpoints").empty();
    screen_.line(places_.report(run).string() + ": damaged (" + fault + "); " +
                 (state == State::no_data ? "fetch it again, or the run's data, or delete it"
                  : goes_on               ? "the run goes on from its last checkpoint"
                                          : "the run is made again"));
  }

  void tell_missing(const Run& run) {
    std::vector<std::string> files;
    for (const auto& path : missing_data(run, places_)) {
      if (std::ranges::find(files, path.string()) == files.end())  // a file may hold several parts
        files.push_back(path.string());
    }
    screen_.line(run.task + ": skipped, there is no " + bytes::listed(files) + "; expected in " +
                 places_.data.string() + ": " + experiment_.data_help + " (name another folder with --data)");
  }

  /// The next run, and with it others that differ in the seed alone, as long as there is work for all jobs.
  std::vector<const Run*> next_group() {
    const auto most = std::max<std::size_t>(1, waiting_.size() / options_.jobs);
    std::vector<const Run*> group;
    const auto fits = [&](const Run& run) {
      return group.empty() ||
             (group.size() < most && differ_in_seed_alone(*group.front(), run) &&
              state_of(*group.front(), places_) == State::fresh && state_of(run, places_) == State::fresh);
    };
    while (!waiting_.empty() && fits(*waiting_.front())) {
      group.push_back(waiting_.front());
      waiting_.pop_front();
    }
    return group;
  }

  void count_finished(const Run& run, ResultFile result) {
    if (result == ResultFile::whole)
      ++outcome_.finished;
    else
      keep_result(run);
    tell_other_settings(run);
  }

  /// A finished run stays as it is, whatever --set says now.
  void tell_other_settings(const Run& run) {
    if (options_.overrides.empty())
      return;
    try {
      const auto others =
          not_as_wanted(run, read_result(places_.result(run)).config, places_.configs, options_.overrides);
      if (!others.empty())
        screen_.line(run.name() + ": was finished with other settings than --set says (" + bytes::listed(others) +
                     ") and stays so; name other --runs and --results");
    } catch (const std::exception&) {
      // What cannot be read has been told, or is told with the table.
    }
  }

  /// What an interrupted run keeps although --set or --device say otherwise; empty where they say nothing.
  std::string kept_settings(const Run& run) const {
    if (options_.overrides.empty() && options_.device.empty())
      return "";
    std::vector<std::string> others;
    try {
      const auto config = config::to_json(config::load_config(places_.run_folder(run) / "config.yaml"));
      others = not_as_wanted(run, config, places_.configs, options_.overrides);
    } catch (const std::exception&) {
      // The run itself says what is wrong with its file.
    }
    return " with the settings it began with" +
           (others.empty() ? "" : " (" + bytes::listed(others) + ", not what --set says)");
  }

  /// Adds the run's lock; false where there is nothing to make, for another process makes it or has made it meanwhile.
  bool take(const Run& run, std::vector<RunLock>& locks) {
    try {
      std::string owner;
      auto lock = RunLock::take(places_.lock(run), owner);
      if (!lock) {
        elsewhere_.push_back(&run);
        screen_.line(run.name() + ": is left to " + owner + ", which is making it");
        return false;
      }
      const ResultFile result = result_file(run, places_);
      if (state_of(run, places_, result) == State::finished) {
        count_finished(run, result);
        return false;
      }
      // A damaged report would be taken for that of the run that begins, and a folder that holds one for a run.
      if (::unlink(places_.report(run).c_str()) != 0 && errno != ENOENT)
        throw bytes::FileError("remove", places_.report(run), errno);
      locks.push_back(std::move(*lock));
      return true;
    } catch (const std::exception& error) {
      fail(run, error.what());
      return false;
    }
  }

  void start(std::vector<const Run*> group) {
    std::vector<RunLock> locks;
    std::erase_if(group, [&](const Run* run) { return !take(*run, locks); });
    if (group.empty())
      return;
    const Run& first = *group.front();
    try {
      const bool resumes = state_of(first, places_) == State::interrupted;
      std::vector<std::string> words = {options_.program};
      std::ranges::move(train_words(group, places_, options_), std::back_inserter(words));
      if (options_.seconds > 0)
        std::ranges::move(std::vector<std::string>{"--minutes", std::to_string(std::max(time_left(), 1e-3) / 60)},
                          std::back_inserter(words));
      std::vector<std::pair<std::string, std::string>> environment;
      if (options_.threads > 0)
        environment = {{"OMP_NUM_THREADS", std::to_string(options_.threads)}};
      const bool in_float32 = !resumes && falls_back_to_float32(first, places_, options_);
      LogTail log(places_.log(first));
      running_.push_back({group, std::move(locks), std::move(log), ChildProcess(words, environment, places_.log(first)),
                          Clock::now()});
      screen_.line(first.name() + ": " + (resumes ? "goes on" : "starts") + (resumes ? kept_settings(first) : "") +
                   (in_float32 ? " in float32, for bfloat16 needs a GPU" : "") +
                   (group.size() > 1 ? ", then " + bytes::counted(group.size() - 1, "other seed") : ""));
    } catch (const std::exception& error) {  // a bad configuration is no reason to leave the others
      for (const Run* run : group)
        fail(*run, error.what());
    }
  }

  void collect() {
    for (auto running = running_.begin(); running != running_.end();) {
      const auto status = running->process.poll();
      tell_warnings(*running);
      keep_finished(*running, status.has_value());
      if (!status) {
        ++running;
        continue;
      }
      const Running ended = std::move(*running);
      running = running_.erase(running);
      const std::vector<const Run*> rest(ended.runs.begin() + static_cast<std::ptrdiff_t>(ended.done),
                                         ended.runs.end());
      if (rest.empty() || outcome_.signal != 0)
        continue;
      if (*status == run::kTimeIsOver) {
        outcome_.unfinished += rest.size();
        continue;
      }
      const bool killed = *status == 128 + SIGKILL;
      fail(*rest.front(), "ended with status " + std::to_string(*status) +
                              (killed ? ", killed, as a system does when memory runs out (--set batch.size=… takes "
                                        "less)"
                                      : "") +
                              last_words(places_.log(*ended.runs.front())));
      waiting_.insert(waiting_.begin(), rest.begin() + 1, rest.end());
    }
  }

  /// A bad run is seen soon: what it warns of does not stay in its log alone.
  void tell_warnings(Running& running) {
    for (const std::string& line : running.log.lines())
      if (line.starts_with("warning:"))
        screen_.line(running.at_work().name() + ": " + line);
  }

  /// A run of a process that goes on is finished when its report is there.
  void keep_finished(Running& running, bool ended) {
    while (running.done + (ended ? 0 : 1) < running.runs.size() && run::is_there(places_.report(running.at_work()))) {
      const auto now = Clock::now();
      keep_result(running.at_work(), std::chrono::duration<double>(now - running.started).count());
      running.started = now;
      ++running.done;
    }
  }

  void keep_result(const Run& run, double seconds = 0) {
    try {
      const auto folder = places_.run_folder(run);
      const auto result = write_result(experiment_, run, places_, options_.machine);
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
      names += (names.empty() ? ": " : ", ") + running.at_work().name() + " " + std::to_string(seconds) + " s";
    }
    return names;
  }

  const Experiment& experiment_;
  std::span<const Run> runs_;
  const Places& places_;
  const RunnerOptions& options_;
  const Clock::time_point called_ = Clock::now();
  Screen screen_;
  std::list<const Run*> waiting_;
  std::list<Running> running_;
  std::vector<const Run*> elsewhere_;
  Outcome outcome_;
};

}  // namespace

Outcome make_missing(const Experiment& experiment, std::span<const Run> runs, const Places& places,
                     const RunnerOptions& options) {
  return Runner(experiment, runs, places, options).make();
}

Page write_page(const Experiment& experiment, const Places& places) {
  run::make_folders(places.results);
  const auto file = places.results / "README.md";
  std::vector<std::string> left_out;
  auto results = read_results(places.results, &left_out);
  auto doubts = compare_with_recipes(experiment, results, places.configs);
  const std::string page = results_page(experiment, results, doubts);
  const std::array parts = {std::as_bytes(std::span(page))};
  bytes::atomic_write(file, parts);
  std::ranges::move(found_parts(experiment, results).doubts, std::back_inserter(doubts));
  return {file, std::move(doubts), std::move(left_out)};
}

}  // namespace dba::reproduce
