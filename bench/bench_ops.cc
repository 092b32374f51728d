// Times every operator by itself, forward and backward, at the sizes of a Text layer.
//   bench_ops --device=cuda --dtype=bfloat16 --tokens=131072 --benchmark_filter=compress
// The backend is what DBA_BACKEND says. On a GPU the time is that between two events.

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "bench/clock.h"
#include "bench/precision.h"
#include "dba/ops.h"
#include "dba/residual_norm.h"

namespace {

using at::Tensor;

constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 4;
constexpr int64_t kSlots = 16;
constexpr int64_t kInner = 6;
constexpr double kScale = 1.0 / 16;

struct Options {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;
  int64_t tokens = 8192;
};

/// The operands of a layer of form `paper` with one Z.
struct Layer {
  Layer(const Options& options, int64_t length)
      : sequences(dba::Sequences::dense(std::max<int64_t>(1, options.tokens / length), length, options.device)) {
    torch::manual_seed(1);
    const auto type = torch::TensorOptions(options.device).dtype(options.dtype);
    const auto make = [&](at::IntArrayRef sizes, double scale = kScale) {
      return (torch::randn(sizes, type) * scale).requires_grad_();
    };
    x = make({sequences.rows, kWidth}, 1.0);
    branch = make({sequences.rows, kWidth}, 1.0);
    norm_weight = make({kWidth});
    norm_bias = make({kWidth});
    z = make({kSlots, kWidth}, 1.0);
    rows.shared = make({3 * kHeads * kSlots, kWidth});
    rows.shared_bias = make({3 * kHeads * kSlots});
    for (auto* weight : {&weights.query_weight, &weights.key_weight, &weights.value_weight, &weights.out_weight}) {
      *weight = make({kWidth, kWidth});
    }
    for (auto* bias : {&weights.query_bias, &weights.key_bias, &weights.value_bias, &out_bias}) {
      *bias = make({kWidth});
    }
    weights.width = make({kHeads, kWidth / kHeads, kInner});
    restore_rows = make({kHeads * kSlots, kWidth});
    restore_bias = make({kHeads * kSlots});
    const torch::NoGradGuard no_grad;
    summary = dba::ops::compress(x, sequences, rows);
    m = dba::ops::core(summary.c, summary.r, weights, kHeads).m;
    for (auto* tensor : {&summary.c, &summary.r, &m}) {
      tensor->requires_grad_();
    }
  }

  std::vector<Tensor> core_leaves() const {
    return {summary.c,          summary.r,         weights.query_weight, weights.query_bias,
            weights.key_weight, weights.key_bias,  weights.value_weight, weights.value_bias,
            weights.width,      weights.out_weight};
  }

  dba::Sequences sequences;
  Tensor x, branch, norm_weight, norm_bias, z, restore_rows, restore_bias, out_bias, m;
  dba::ops::ScoreRows rows;
  dba::ops::CoreWeights weights;
  dba::ops::Summary summary;
};

/// An operator: its outputs, and what they are differentiated by.
struct Operator {
  const char* name;
  std::vector<Tensor> (*forward)(const Layer&);
  std::vector<Tensor> (*leaves)(const Layer&);
};

const Operator kOperators[] = {
    {"fold",
     [](const Layer& l) -> std::vector<Tensor> {
       return {dba::ops::fold(l.z, l.weights.query_weight, {}, kHeads, kScale).first};
     },
     [](const Layer& l) -> std::vector<Tensor> {
       return {l.z, l.weights.query_weight};
     }},
    {"compress",
     [](const Layer& l) -> std::vector<Tensor> {
       const auto summary = dba::ops::compress(l.x, l.sequences, l.rows);
       return {summary.c, summary.r};
     },
     [](const Layer& l) -> std::vector<Tensor> {
       return {l.x, l.rows.shared, l.rows.shared_bias};
     }},
    {"core",
     [](const Layer& l) -> std::vector<Tensor> {
       return {dba::ops::core(l.summary.c, l.summary.r, l.weights, kHeads).m};
     },
     [](const Layer& l) { return l.core_leaves(); }},
    {"restore",
     [](const Layer& l) -> std::vector<Tensor> {
       return {dba::ops::restore(l.x, l.sequences, l.restore_rows, l.restore_bias, l.m, l.out_bias, kHeads)};
     },
     [](const Layer& l) -> std::vector<Tensor> {
       return {l.x, l.restore_rows, l.restore_bias, l.m, l.out_bias};
     }},
    {"attention",
     [](const Layer& l) -> std::vector<Tensor> {
       return {
           dba::ops::attention(l.x, l.sequences, l.rows, l.weights, l.restore_rows, l.restore_bias, l.out_bias, kHeads)
               .y};
     },
     [](const Layer& l) {
       auto leaves = l.core_leaves();
       leaves[0] = l.x;
       leaves[1] = l.rows.shared;
       leaves.insert(leaves.end(), {l.rows.shared_bias, l.restore_rows, l.restore_bias, l.out_bias});
       return leaves;
     }},
    {"residual_norm",
     [](const Layer& l) -> std::vector<Tensor> {
       return {dba::ops::residual_norm(l.x, {l.branch, {}, {}}, {l.norm_weight, l.norm_bias})};
     },
     [](const Layer& l) -> std::vector<Tensor> {
       return {l.x, l.branch, l.norm_weight, l.norm_bias};
     }},
};

void run(benchmark::State& state, const Options& options, const Layer& layer, const dba::bench::Call& call) {
  const auto timed = dba::bench::make_timed_call(options.device, call);
  // Several calls in a row keep a GPU's queue full.
  const int64_t calls = options.device.is_cpu() ? 1 : 20;
  for (auto _ : state) {
    state.SetIterationTime(timed->seconds(calls));
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(layer.sequences.rows), benchmark::Counter::kIsIterationInvariantRate);
}

void forward(benchmark::State& state, const Options& options, const Operator& op) {
  const Layer layer(options, state.range(0));
  run(state, options, layer, [&] {
    const torch::NoGradGuard no_grad;
    op.forward(layer);
  });
}

void backward(benchmark::State& state, const Options& options, const Operator& op) {
  const Layer layer(options, state.range(0));
  const auto outputs = op.forward(layer);
  const auto leaves = op.leaves(layer);
  std::vector<Tensor> gradients;
  for (const auto& output : outputs) {
    gradients.push_back(torch::randn_like(output));
  }
  run(state, options, layer, [&] {
    torch::autograd::grad(outputs, leaves, gradients, /*retain_graph=*/true, /*create_graph=*/false,
                          /*allow_unused=*/true);
  });
}

/// Takes the options that are not Google Benchmark's out of the command line.
Options parse(int& argc, char** argv) {
  Options options;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = word.substr(std::min(word.size(), word.find('=') + 1));
    if (word.rfind("--device=", 0) == 0) {
      options.device = at::Device(value);
    } else if (word.rfind("--dtype=", 0) == 0) {
      options.dtype = dba::bench::storage_type(dba::bench::parse_precision(value));
    } else if (word.rfind("--tokens=", 0) == 0) {
      options.tokens = std::stoll(value);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  for (const auto& op : kOperators) {
    for (const bool back : {false, true}) {
      const auto name = std::string(op.name) + (back ? "_backward" : "");
      auto* registered = benchmark::RegisterBenchmark(name.c_str(), back ? backward : forward, options, op);
      registered->ArgName("n")->Arg(512)->Arg(4096)->UseManualTime()->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "bench_ops: " << error.what() << "\n";
  return 2;
}
