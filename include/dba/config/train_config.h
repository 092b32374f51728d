#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace dba::config {

// What every key means, and what values it takes, is written in one place: the table in src/config/keys.cc, which
// `--print-config` and docs/config.md show. Here stand the names, the types and the defaults. Choices are kept by name.

struct DataConfig {
  std::string train;
  std::string validation;
  std::string test;
  std::string format = "auto";
  std::string text_column = "text";
  std::string second_text_column;
  std::string label_column = "label";
  std::string case_column = "case";
  std::string time_column = "time";
  std::string tokeniser = "byte";
  std::int64_t min_count = 1;
  std::int64_t max_vocabulary = 0;
  std::int64_t integers = 0;
  std::vector<std::int64_t> leave_out;
  bool cls = false;
  bool eos = false;
  std::int64_t max_length = 0;
  std::string too_long = "cut";
  double validation_fraction = 0.1;
  bool standardise = true;
  std::string cache;
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  std::int64_t size = 32;
  std::int64_t tokens = 0;
  std::int64_t bucket = 50;
  std::int64_t prefetch = 4;
  std::string on_device = "auto";
  bool operator==(const BatchConfig&) const = default;
};

struct ModelConfig {
  std::string method = "dba";
  std::string method_options;
  std::int64_t d = 128;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  bool tied = false;
  std::int64_t d_ffn = 256;
  std::int64_t d_p = 16;
  std::int64_t d_in = 24;
  std::string form = "paper";
  std::string normalise = "softmax";
  std::string z_update = "residual_norm";
  bool compress_length = true;
  bool compress_width = true;
  bool bias = true;
  std::string norm = "layer";
  bool norm_first = false;
  std::string activation = "gelu";
  double dropout = 0.1;
  double attention_dropout = 0.1;
  double activation_dropout = 0.0;
  std::string position = "learned";
  bool embedding_norm = true;
  bool slots_norm = true;
  bool scale_features = false;
  bool output_activation = false;
  std::string pooling = "mean";
  std::string pair_features = "concatenate";
  std::string head = "mlp";
  std::int64_t head_hidden = 0;
  std::string initialise = "luna";
  bool operator==(const ModelConfig&) const = default;
};

struct OptimiserConfig {
  std::string name = "adamw";
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.98};
  double eps = 1e-8;
  double weight_decay = 1e-4;
  double momentum = 0.9;
  bool operator==(const OptimiserConfig&) const = default;
};

struct ScheduleConfig {
  std::string name = "inverse_sqrt";
  std::int64_t warmup = 100;
  double warmup_from = 0.0;
  double final_ratio = 0.0;
  std::vector<std::int64_t> milestones;
  double factor = 0.1;
  bool operator==(const ScheduleConfig&) const = default;
};

struct LoopConfig {
  std::int64_t updates = 0;
  std::int64_t epochs = 0;
  std::int64_t accumulate = 1;
  double clip = 0.0;
  double label_smoothing = 0.0;
  std::string class_weights = "none";
  std::int64_t evaluate_every = 0;
  std::int64_t evaluate_epochs = 1;
  bool watch_test = false;
  std::int64_t patience = 0;
  std::string metric = "accuracy";
  std::int64_t checkpoint_every = 1000;
  double checkpoint_seconds = 600.0;
  std::int64_t keep = 2;
  std::int64_t log_every = 50;
  bool graph = true;
  std::string init_from;
  bool new_head = false;
  bool operator==(const LoopConfig&) const = default;
};

struct ExpectConfig {
  std::int64_t update = 0;
  double accuracy = 0.0;
  bool operator==(const ExpectConfig&) const = default;
};

/// Everything that decides a training run. Sections are named as in the file.
struct TrainConfig {
  std::int64_t seed = 1;
  std::string device = "auto";
  std::string precision = "float32";
  bool deterministic = true;
  std::int64_t threads = 0;
  std::string protocol = "honest";
  DataConfig data;
  BatchConfig batch;
  ModelConfig model;
  OptimiserConfig optimiser;
  ScheduleConfig schedule;
  LoopConfig train;
  ExpectConfig expect;
  bool operator==(const TrainConfig&) const = default;
};

}  // namespace dba::config
