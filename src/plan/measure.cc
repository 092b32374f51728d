#include "plan/measure.h"

#include <torch/torch.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>

#include "bench/clock.h"
#include "bench/result.h"
#include "bench/work.h"

namespace dba::plan {
namespace {

constexpr int64_t kFewestSamples = 3;
/// A sample lasts about this long, so that the clock's grain and a call's jitter do not count.
constexpr double kSampleSeconds = 0.005;
constexpr int64_t kMostCalls = 500;
/// A sample of a call up to this long begins with one that does not count: a layer in use finds memory and caches as it
/// left them itself, not as another candidate did.
constexpr double kLongCall = 0.3;
/// A candidate that takes this many times as long as the fastest needs no exact figure.
constexpr double kFarBehind = 3.0;
/// Candidates within this factor of the fastest are sampled this many times as long, whichever of them it is.
constexpr double kClose = 1.3;
constexpr int64_t kLonger = 3;
/// More than this share of the free memory is not asked for.
constexpr double kShareOfMemory = 0.9;

bench::Method method_of(const Shape& shape, Candidate candidate) {
  bench::Method method;
  method.name = to_string(candidate);
  method.attention = "dba";
  method.form = shape.form;
  method.normalise = shape.normalise;
  method.order = order_of(candidate);
  method.backend = candidate == Candidate::reference ? Backend::reference : backend();
  return method;
}

bench::Method softmax_method() {
  bench::Method method;
  method.name = "softmax";
  method.attention = "softmax";
  return method;
}

bench::Precision precision_of(const Shape& shape) {
  if (shape.autocast) {
    return bench::Precision::autocast;
  }
  switch (shape.dtype) {
    case at::kDouble:
      return bench::Precision::float64;
    case at::kBFloat16:
      return bench::Precision::bfloat16;
    case at::kHalf:
      return bench::Precision::float16;
    default:
      return bench::Precision::float32;
  }
}

bench::Settings settings_of(const Shape& shape) {
  bench::Settings settings;
  settings.device = at::Device(shape.device);
  settings.sizes.d = shape.d;
  settings.sizes.heads = shape.heads;
  settings.sizes.d_p = shape.d_p;
  settings.sizes.d_in = shape.e * shape.heads;
  settings.sizes.dropout = shape.dropout;
  settings.sizes.slots_per_sequence = shape.slots_per_sequence;
  return settings;
}

class Runner {
 public:
  Runner(const Shape& shape, const bench::Method& method, const Cost& cost, const Effort& effort)
      : settings_(settings_of(shape)),
        pass_(shape.training ? bench::Pass::forward_backward : bench::Pass::forward),
        effort_(effort) {
    guarded([&] {
      const auto free = static_cast<double>(bench::available_memory(settings_.device));
      TORCH_CHECK(free < 0 || cost.memory < kShareOfMemory * free, "needs about ", cost.memory / 1e9,
                  " GB beyond the input, and ", free / 1e9, " GB are free; take shorter sequences or fewer of them");
      const bench::Case one{shape.length(), shape.batch, precision_of(shape), 0};
      work_.emplace(settings_, method, one);
      work_->run(pass_);
      if (effort.memory) {
        figure.memory = bench::measure_peak(settings_.device, [&] { work_->run(pass_); });
        figure.memory.tensors += work_->prepared_gradient_bytes(pass_);
      }
      call_ = bench::make_timed_call(settings_.device, [this] { work_->run(pass_); });
      constexpr double kClockGrain = 1e-7;
      once_ = std::max(call_->seconds(1), kClockGrain);
    });
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// The output without dropout; undefined where the candidate failed.
  at::Tensor output() {
    at::Tensor y;
    guarded([&] { y = work_->evaluate(work_->input(), {}).y; });
    return y;
  }

  /// At most `seconds` in all, but a few samples in any case.
  void sample(double seconds) {
    const auto taken = static_cast<int64_t>(samples_.size());
    if (!figure.failure.empty() || (taken >= kFewestSamples && spent_ >= seconds)) {
      return;
    }
    guarded([&] {
      const auto calls = std::clamp<int64_t>(static_cast<int64_t>(kSampleSeconds / once_), 1, kMostCalls);
      if (once_ < kLongCall) {
        call_->once();
        spent_ += once_;
      }
      samples_.push_back(call_->seconds(calls));
      spent_ += samples_.back() * static_cast<double>(calls);
    });
  }

  /// The median so far, or the first call where it was faster than the only sample; infinity after a failure.
  double seconds() const {
    if (!figure.failure.empty()) {
      return std::numeric_limits<double>::infinity();
    }
    const auto median = bench::quartiles_of(samples_).median;
    return samples_.size() > 1 ? median : std::min(median, once_);
  }

  void finish() {
    if (figure.failure.empty()) {
      figure.seconds = seconds();
    }
  }

  Figure figure;

 private:
  template <typename Function>
  void guarded(const Function& function) {
    if (!figure.failure.empty()) {
      return;
    }
    const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
    try {
      function();
    } catch (const c10::Error& error) {
      figure.failure = first_line(error.what_without_backtrace());
    } catch (const std::exception& error) {
      figure.failure = first_line(error.what());
    }
  }

  bench::Settings settings_;
  bench::Pass pass_;
  const Effort& effort_;
  std::optional<bench::Work> work_;
  std::unique_ptr<bench::TimedCall> call_;
  double once_ = 0.0;
  double spent_ = 0.0;
  std::vector<double> samples_;
};

void take_turns(const std::vector<Runner*>& runners, int64_t rounds, double seconds, const Effort& effort) {
  for (int64_t round = 0; round < rounds && !effort.stop(); ++round) {
    for (auto* const runner : runners) {
      runner->sample(seconds);
    }
  }
}

/// Those that take at most this many times as long as the fastest.
std::vector<Runner*> within(double factor, const std::vector<Runner*>& runners) {
  double fastest = std::numeric_limits<double>::infinity();
  for (const auto* const runner : runners) {
    fastest = std::min(fastest, runner->seconds());
  }
  std::vector<Runner*> result;
  std::copy_if(runners.begin(), runners.end(), std::back_inserter(result),
               [&](const Runner* runner) { return runner->seconds() <= factor * fastest; });
  return result;
}

double relative_difference(const at::Tensor& y, const at::Tensor& truth) {
  const auto wide = truth.to(at::kDouble);
  return ((y.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
}

}  // namespace

Figures measure(const Shape& shape, const Plan& plan, const Effort& effort) {
  std::vector<std::pair<Candidate, std::unique_ptr<Runner>>> runners;
  for (const auto& estimate : plan.estimates) {
    if (estimate.obstacle.empty() && !effort.stop()) {
      runners.emplace_back(estimate.candidate, std::make_unique<Runner>(shape, method_of(shape, estimate.candidate),
                                                                        estimate.cost, effort));
    }
  }
  std::unique_ptr<Runner> softmax;
  if (effort.softmax && !effort.stop()) {
    softmax = std::make_unique<Runner>(shape, softmax_method(), softmax_cost(shape), effort);
  }
  std::vector<Runner*> all;
  for (auto& [candidate, runner] : runners) {
    all.push_back(runner.get());
  }
  take_turns(all, 1, effort.seconds, effort);
  auto in_question = within(kFarBehind, all);
  if (softmax) {
    in_question.push_back(softmax.get());
  }
  take_turns(in_question, effort.repeats, effort.seconds, effort);
  if (const auto close = within(kClose, all); close.size() > 1) {
    take_turns(close, (kLonger - 1) * effort.repeats, kLonger * effort.seconds, effort);
  }
  at::Tensor truth;
  for (auto& [candidate, runner] : runners) {
    if (candidate == Candidate::reference) {
      truth = runner->output();
    }
  }
  Figures figures;
  for (auto& [candidate, runner] : runners) {
    const auto y = truth.defined() ? runner->output() : at::Tensor();
    if (y.defined()) {
      runner->figure.difference = relative_difference(y, truth);
    }
    runner->finish();
    figures.candidates[candidate] = runner->figure;
  }
  if (softmax) {
    softmax->finish();
    figures.softmax = softmax->figure;
  }
  return figures;
}

}  // namespace dba::plan
