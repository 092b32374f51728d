// Times the two passes against scaled_dot_product_attention on the same tokens: each line says how many times faster
// a pass is. All numbers come from the same run; the machine and its threads are in the head that the library prints.

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>

#include "dba/ops.h"

namespace {

constexpr int64_t kTokens = 8192;
constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 4;
constexpr int64_t kSlots = 16;

struct Layer {
  explicit Layer(int64_t length)
      : sequences(dba::Sequences::dense(kTokens / length, length, at::kCPU)),
        x(torch::randn({kTokens, kWidth})),
        heads(torch::randn({kTokens / length, kHeads, length, kWidth / kHeads})),
        m(torch::randn({kTokens / length, kHeads * kSlots, kWidth})),
        restore_rows(torch::randn({kHeads * kSlots, kWidth}) / 16) {
    rows.shared = torch::randn({3 * kHeads * kSlots, kWidth}) / 16;
  }
  void compress() const {
    benchmark::DoNotOptimize(dba::ops::compress(x, sequences, rows).c.data_ptr());
  }
  void restore() const {
    benchmark::DoNotOptimize(dba::ops::restore(x, sequences, restore_rows, {}, m, {}, kHeads).data_ptr());
  }
  void softmax_attention() const {
    benchmark::DoNotOptimize(at::scaled_dot_product_attention(heads, heads, heads).data_ptr());
  }

  dba::Sequences sequences;
  at::Tensor x, heads, m, restore_rows;
  dba::ops::ScoreRows rows;
};

double seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Alternates the pass with the baseline, so that both meet the same state of the machine.
void run(benchmark::State& state, void (Layer::*pass)() const) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  const Layer layer(state.range(0));
  (layer.*pass)();
  layer.softmax_attention();
  double baseline = 0;
  double own = 0;
  for (auto _ : state) {
    const double elapsed = seconds([&] { (layer.*pass)(); });
    baseline += seconds([&] { layer.softmax_attention(); });
    own += elapsed;
    state.SetIterationTime(elapsed);
  }
  state.counters["times_faster_than_sdpa"] = baseline / own;
}

void compress(benchmark::State& state) {
  run(state, &Layer::compress);
}

void restore(benchmark::State& state) {
  run(state, &Layer::restore);
}

}  // namespace

BENCHMARK(compress)->ArgName("n")->Arg(512)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(restore)->ArgName("n")->Arg(512)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_MAIN();
