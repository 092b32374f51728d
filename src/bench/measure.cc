#include "bench/measure.h"

#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include "bench/clock.h"

namespace dba::bench {
namespace {

constexpr int64_t kFewestSamples = 3;
/// A warm sample lasts about this long, so that the clock's grain and a call's jitter do not count.
constexpr double kSampleSeconds = 0.02;
/// A sample of a call up to this long begins with one that does not count: memory and caches are as the method before
/// left them. What that costs is lost in a longer call.
constexpr double kLongCall = 0.3;
constexpr int64_t kMostCalls = 1000;
/// More than this share of the free memory is not asked for.
constexpr double kShareOfMemory = 0.9;

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string gigabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 1e10 ? "%.2g GB" : "%.0f GB", bytes / 1e9);
  return text;
}

/// Runs `work` and turns what it throws into the result's status.
template <typename Function>
bool guarded(Result& result, const Function& work) {
  try {
    work();
    return true;
  } catch (const c10::OutOfMemoryError& error) {
    result.status = Status::skipped;
    // What follows is advice on the allocator.
    const std::string text = first_line(error.what_without_backtrace());
    result.reason = "out of memory: " + text.substr(0, text.find(". GPU "));
  } catch (const c10::Error& error) {
    result.status = Status::failed;
    result.reason = first_line(error.what_without_backtrace());
  } catch (const std::exception& error) {
    result.status = Status::failed;
    result.reason = first_line(error.what());
  }
  return false;
}

/// A method of the case under measurement.
struct Contender {
  const Method* method;
  std::optional<Work> work;
  Verdict verdict;
  Status status = Status::ok;
  std::string reason;
};

class Measurement {
 public:
  Measurement(const Settings& settings, const Watcher& watcher) : settings_(settings), watcher_(watcher) {
    total_ = static_cast<int64_t>(settings.cases.size() * settings.methods.size() * settings.passes.size() *
                                  settings.caches.size());
  }

  std::vector<Result> run() {
    for (const auto& one : settings_.cases) {
      if (watcher_.stop()) {
        break;
      }
      if (one.threads > 0) {
        at::set_num_threads(one.threads);
      }
      measure_case(one);
      if (!settings_.device.is_cpu()) {
        c10::getDeviceAllocator(settings_.device.type())->emptyCache();
      }
    }
    add_ratios(results_, settings_.baselines);
    return std::move(results_);
  }

 private:
  Result blank(const Contender& contender, const Case& one, Pass pass, Cache cache) const {
    Result result;
    result.method = contender.method->name;
    result.one = one;
    result.pass = pass;
    result.cache = cache;
    result.status = contender.status;
    result.reason = contender.reason;
    result.verdict = contender.verdict;
    result.cost = cost_of(settings_.kind, *contender.method, settings_.sizes, one, pass, settings_.device);
    // Where even the cheapest pass was too large, every one says what it would need itself.
    if (contender.status == Status::skipped && !contender.work) {
      Result own = result;
      own.status = Status::ok;
      result.reason = fits(own) ? contender.reason : own.reason;
    }
    return result;
  }

  void keep(Result result) {
    if (result.status == Status::stopped) {
      return;
    }
    if (result.status != Status::ok) {
      const auto sentence = result.method + " at n = " + std::to_string(result.one.length) + ", " +
                            to_string(result.pass) + ": " + to_string(result.status) + ": " + result.reason;
      if (sentence != last_sentence_) {
        watcher_.say(sentence);
      }
      last_sentence_ = sentence;
    }
    results_.push_back(std::move(result));
    watcher_.progress(static_cast<int64_t>(results_.size()), total_);
  }

  /// Whether the estimate says that the call fits.
  bool fits(Result& result) const {
    const auto free = static_cast<double>(available_memory(settings_.device));
    if (free >= 0 && result.cost.memory > kShareOfMemory * free) {
      result.status = Status::skipped;
      result.reason = "needs about " + gigabytes(result.cost.memory) + " beyond the input, and " + gigabytes(free) +
                      " are free; take shorter sequences or fewer of them";
    }
    return result.status == Status::ok;
  }

  /// Makes and checks the work, unless even the cheapest pass would not fit.
  void prepare(Contender& contender, const Case& one) const {
    if (watcher_.stop()) {
      contender.status = Status::stopped;
      return;
    }
    Result first = blank(contender, one, settings_.passes.front(), settings_.caches.front());
    if (fits(first)) {
      guarded(first, [&] {
        contender.work.emplace(settings_, *contender.method, one);
        const bool gradients = std::any_of(settings_.passes.begin(), settings_.passes.end(),
                                           [](Pass pass) { return pass != Pass::forward; });
        if (settings_.check_length == 0) {
          contender.verdict.right = true;
        } else {
          contender.verdict = check(*contender.work, one, gradients, settings_.check_length);
        }
      });
    }
    contender.status = first.status;
    contender.reason = first.reason;
    if (contender.status == Status::ok && !contender.verdict.right) {
      contender.status = Status::wrong;
      contender.reason = contender.verdict.reason;
    }
  }

  void measure_case(const Case& one) {
    std::vector<Contender> contenders;
    for (const auto& method : settings_.methods) {
      contenders.push_back({&method, std::nullopt, {}, Status::ok, {}});
      prepare(contenders.back(), one);
    }
    for (const auto pass : settings_.passes) {
      measure_pass(contenders, one, pass);
    }
  }

  /// One contender's calls under the clock.
  struct Runner {
    std::unique_ptr<TimedCall> call;
    Result result;
    double once = 0.0;
    std::vector<double> samples;
    double spent = 0.0;
  };

  Runner start(Contender& contender, const Case& one, Pass pass) const {
    Runner runner;
    runner.result = blank(contender, one, pass, Cache::warm);
    if (runner.result.status != Status::ok || !fits(runner.result)) {
      return runner;
    }
    guarded(runner.result, [&] {
      auto& work = *contender.work;
      work.run(pass);
      work.forget_gradients();
      runner.result.memory = measure_peak(settings_.device, [&] { work.run(pass); });
      runner.result.memory.tensors += work.prepared_gradient_bytes(pass);
      runner.result.parameter_bytes = work.parameter_bytes();
      runner.call = make_timed_call(settings_.device, [&work, pass] { work.run(pass); });
      constexpr double kClockGrain = 1e-7;
      runner.once = std::max(runner.call->seconds(1), kClockGrain);
      runner.result.clock = runner.call->clock();
    });
    return runner;
  }

  void measure_pass(std::vector<Contender>& contenders, const Case& one, Pass pass) {
    std::vector<Runner> runners;
    for (auto& contender : contenders) {
      if (watcher_.stop() && contender.status == Status::ok) {
        contender.status = Status::stopped;
      }
      runners.push_back(start(contender, one, pass));
    }
    for (const auto cache : settings_.caches) {
      take_turns(runners, cache);
      for (auto& runner : runners) {
        Result result = runner.result;
        result.cache = cache;
        result.samples = static_cast<int64_t>(runner.samples.size());
        result.seconds = quartiles_of(std::move(runner.samples));
        if (result.status == Status::ok && result.samples < std::min(kFewestSamples, settings_.repeats)) {
          result.status = Status::stopped;  // too few for a median
        }
        runner.samples.clear();
        runner.spent = 0.0;
        keep(std::move(result));
      }
    }
  }

  /// Sample by sample, every contender in turn, so that all meet the same state of the machine.
  void take_turns(std::vector<Runner>& runners, Cache cache) {
    std::optional<CacheFlusher> flusher;
    if (cache == Cache::cold) {
      flusher.emplace(settings_.device);
    }
    for (int64_t round = 0; round < settings_.repeats; ++round) {
      for (auto& runner : runners) {
        if (watcher_.stop()) {
          return;
        }
        if (runner.call && (round < kFewestSamples || runner.spent < settings_.seconds)) {
          guarded(runner.result, [&] { sample(runner, flusher ? &*flusher : nullptr); });
        }
      }
    }
  }

  void sample(Runner& runner, CacheFlusher* flusher) const {
    int64_t calls = 1;
    if (flusher != nullptr) {
      flusher->flush();
    } else {
      calls = std::clamp<int64_t>(static_cast<int64_t>(kSampleSeconds / runner.once), 1, kMostCalls);
      if (runner.once < kLongCall) {
        runner.call->once();
      }
    }
    runner.samples.push_back(runner.call->seconds(calls));
    runner.result.calls_per_sample = calls;
    runner.spent += runner.samples.back() * static_cast<double>(calls);
  }

  const Settings& settings_;
  const Watcher& watcher_;
  int64_t total_ = 0;
  std::vector<Result> results_;
  std::string last_sentence_;
};

}  // namespace

std::vector<Result> measure(const Settings& settings, const Watcher& watcher) {
  return Measurement(settings, watcher).run();
}

}  // namespace dba::bench
