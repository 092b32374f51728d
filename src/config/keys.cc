#include "keys.h"

#include <algorithm>
#include <limits>

namespace dba::config {
namespace {

// The address, in any configuration, of the member of that name.
#define DBA_PLACE(member)             \
  [](TrainConfig & config) -> auto& { \
    return config.member;             \
  }

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Range kFraction{0.0, 1.0, false, true};
constexpr Range kNotNegative{0.0, kInfinity};
constexpr Range kPositive{0.0, kInfinity, true};

constexpr Section kSections[] = {
    {"", "The run as a whole."},
    {"data", "What is read and how it becomes sequences. Relative paths start at the working folder."},
    {"batch",
     "How sequences are put together. Batches are packed, without padding; most attentions but DBA pad them for "
     "themselves (docs/zoo.md), and cost less where a batch has sequences of similar lengths."},
    {"model", "The classifier."},
    {"optimiser", "From gradients to weights."},
    {"schedule", "The learning rate over the updates."},
    {"train", "The training loop. It ends with train.updates or train.epochs, whichever comes first."},
    {"expect", "How a good run looks early on."},
};

std::vector<Key> top_keys() {
  return {
      {"seed", Integer{DBA_PLACE(seed), 0, kNoLimit}, "Decides first weights, order of the data, split and dropout."},
      {"device", Choice{DBA_PLACE(device), {"auto", "cpu", "cuda"}}, "`auto` takes the GPU where there is one."},
      {"precision", Choice{DBA_PLACE(precision), {"float32", "bfloat16"}},
       "`bfloat16` computes products in bfloat16 (autocast) and needs a GPU; weights stay in float32."},
      {"deterministic", Flag{DBA_PLACE(deterministic)},
       "Whether only algorithms are used that give the same bits every time."},
      {"threads", Integer{DBA_PLACE(threads), 0, 4096},
       "CPU threads of the computation; 0 leaves the number as it is. Sums depend on it in their last bits."},
      {"protocol", Choice{DBA_PLACE(protocol), {"honest", "last_epoch", "as_published"}},
       "Which model is kept. `honest`: the best one on the validation data; `last_epoch`: the last one, nothing is "
       "chosen, and data.validation_fraction may be 0; `as_published`: the best one on the test set, as some papers "
       "do, after training on the whole training file, and every report says so."},
  };
}

std::vector<Key> data_keys() {
  return {
      {"data.train", Text{DBA_PLACE(data.train)},
       "The training data: a file or folder, or a part of one, as in `records.bin@0-80%`; or what `dba data cache` "
       "wrote."},
      {"data.validation", Text{DBA_PLACE(data.validation)},
       "The data that choose the best model; empty: a part of the training data is held out."},
      {"data.test", Text{DBA_PLACE(data.test)}, "The data of the last evaluation; empty: there is none."},
      {"data.format",
       Choice{DBA_PLACE(data.format),
              {"auto", "jsonl", "csv", "csv_long", "tsv", "listops", "ts", "aan", "imdb", "cifar10", "grey",
               "pathfinder"}},
       "`auto` goes by the ending of the file's name and by what a folder holds."},
      {"data.text_column", Text{DBA_PLACE(data.text_column)},
       "Column of the text in a table, or its key in a JSON object."},
      {"data.second_text_column", Text{DBA_PLACE(data.second_text_column)},
       "Column or key of the second text, where pairs are classified; empty: pairs are what stands under text1 and "
       "text2."},
      {"data.label_column", Text{DBA_PLACE(data.label_column)},
       "Column of the label in a table, or its key in a JSON object."},
      {"data.case_column", Text{DBA_PLACE(data.case_column)},
       "Column of `csv_long` that says which series a row belongs to."},
      {"data.time_column", Text{DBA_PLACE(data.time_column)},
       "Column of `csv_long` with the time of a row: a number that grows within a series."},
      {"data.tokeniser", Choice{DBA_PLACE(data.tokeniser), {"byte", "whitespace", "integer"}},
       "From text to symbols: every byte one, every word one, or numbers that are symbols already."},
      {"data.min_count", Integer{DBA_PLACE(data.min_count), 1, kNoLimit},
       "Words that are rarer in the training data become the unknown symbol; `whitespace` only."},
      {"data.max_vocabulary", Integer{DBA_PLACE(data.max_vocabulary), 0, 1 << 24},
       "Only so many of the commonest words are kept, 0: all of them; `whitespace` only."},
      {"data.integers", Integer{DBA_PLACE(data.integers), 0, 1 << 24},
       "Numbers are below this, whichever of them the training data hold: 256 for pixels; 0: below the largest of the "
       "training data plus one; `integer` only."},
      {"data.leave_out", Integers{DBA_PLACE(data.leave_out), 0},
       "Symbols that are no tokens, as bytes (`byte`) or numbers (`integer`): [0] leaves out black pixels. The others "
       "keep their positions in the whole sequence, as far as position embeddings go, and data.max_length counts the "
       "whole."},
      {"data.cls", Flag{DBA_PLACE(data.cls)}, "Whether a <CLS> symbol goes before every sequence."},
      {"data.eos", Flag{DBA_PLACE(data.eos)}, "Whether an end symbol goes behind every sequence."},
      {"data.max_length", Integer{DBA_PLACE(data.max_length), 0, 1 << 24},
       "The longest sequence, added symbols included; 0: the longest of the training data."},
      {"data.too_long", Choice{DBA_PLACE(data.too_long), {"cut", "refuse"}},
       "What happens to longer sequences: they are cut and counted in the report, or the run stops."},
      {"data.validation_fraction", Number{DBA_PLACE(data.validation_fraction), kFraction},
       "Part of the training data held out for validation where data.validation is empty."},
      {"data.standardise", Flag{DBA_PLACE(data.standardise)},
       "Whether every channel of a series is brought to mean 0 and deviation 1, as measured on the training data."},
      {"data.cache", Text{DBA_PLACE(data.cache)},
       "Folder for data made ready to read, rebuilt when the source changes; empty: inside the run's folder."},
  };
}

std::vector<Key> batch_keys() {
  return {
      {"batch.size", Integer{DBA_PLACE(batch.size), 1, 1 << 20}, "Sequences in a batch, at most."},
      {"batch.tokens", Integer{DBA_PLACE(batch.tokens), 0, 1 << 30},
       "Symbols or time steps in a batch, at most; 0: no limit. A longer sequence makes a batch of its own."},
      {"batch.bucket", Integer{DBA_PLACE(batch.bucket), 1, 1 << 20},
       "So many batches of sequences are sorted by length together; 1: no sorting."},
      {"batch.prefetch", Integer{DBA_PLACE(batch.prefetch), 1, 1024},
       "Batches made ready ahead by a thread of its own; at least one."},
      {"batch.on_device", Choice{DBA_PLACE(batch.on_device), {"auto", "always", "never"}},
       "Whether the data lie in the device's memory and batches are put together there; `auto`: on a GPU, where they "
       "take at most a quarter of its free memory."},
  };
}

std::vector<Key> attention_keys() {
  return {
      {"model.method",
       Choice{DBA_PLACE(model.method),
              {"dba",           "softmax",  "local",        "sparse",   "longformer", "bigbird",   "linformer",
               "reformer",      "sinkhorn", "synthesizer",  "linear",   "performer",  "cosformer", "fnet",
               "nystromformer", "yoso",     "scatterbrain", "pixelfly", "luna",       "flowformer"}},
       "The attention; `dba zoo` says what each does."},
      {"model.method_options", Text{DBA_PLACE(model.method_options)},
       "Its own options, as in window=128, globals=2; `dba zoo NAME` lists them. Empty: their defaults; an option "
       "max_length takes the longest sequence of the data."},
      {"model.d", Integer{DBA_PLACE(model.d), 1, 1 << 16}, "Width of the tokens; divisible by model.heads."},
      {"model.heads", Integer{DBA_PLACE(model.heads), 1, 1024}, "Attention heads."},
      {"model.layers", Integer{DBA_PLACE(model.layers), 1, 1024}, "Layers of the encoder."},
      {"model.tied", Flag{DBA_PLACE(model.tied)}, "Whether all layers share their weights."},
      {"model.d_ffn", Integer{DBA_PLACE(model.d_ffn), 1, 1 << 20}, "Inner width of the feed-forward networks."},
      {"model.d_p", Integer{DBA_PLACE(model.d_p), 1, 1 << 16},
       "Slots per head: the length that sequences are compressed to; `dba` and `luna` only."},
      {"model.d_in", Integer{DBA_PLACE(model.d_in), 1, 1 << 16},
       "Width of the compressed queries and keys over all heads, rounded up to a multiple of model.heads; `dba` only."},
      {"model.form", Choice{DBA_PLACE(model.form), {"paper", "released"}},
       "The equations of the paper, or those of its authors' code; `dba` only."},
      {"model.normalise", Choice{DBA_PLACE(model.normalise), {"softmax", "linear"}},
       "How W_r' and W_c' are normalised; form `paper` only."},
      {"model.z_update", Choice{DBA_PLACE(model.z_update), {"residual_norm", "replace", "fixed", "own"}},
       "How the slots Z go from layer to layer; `dba` and `luna` only."},
      {"model.compress_length", Flag{DBA_PLACE(model.compress_length)},
       "Ablation of form `paper`: false forms the whole n × n map."},
      {"model.compress_width", Flag{DBA_PLACE(model.compress_width)},
       "Ablation of form `paper`: false leaves queries and keys as wide as they are."},
      {"model.bias", Flag{DBA_PLACE(model.bias)}, "Whether the attention's linear layers have biases."},
  };
}

std::vector<Key> network_keys() {
  return {
      {"model.norm", Choice{DBA_PLACE(model.norm), {"layer", "batch"}}, "The normalisation inside the layers."},
      {"model.norm_first", Flag{DBA_PLACE(model.norm_first)},
       "Whether it comes before the attention and the feed-forward network, not after their residual sum."},
      {"model.activation", Choice{DBA_PLACE(model.activation), {"gelu", "relu"}}, "Of the feed-forward networks."},
      {"model.dropout", Number{DBA_PLACE(model.dropout), kFraction},
       "After the embedding, the attention and the feed-forward network, on the slots Z, and behind "
       "model.output_activation."},
      {"model.attention_dropout", Number{DBA_PLACE(model.attention_dropout), kFraction},
       "On the attention's matrices."},
      {"model.activation_dropout", Number{DBA_PLACE(model.activation_dropout), kFraction},
       "Between the two layers of the feed-forward networks."},
      {"model.position", Choice{DBA_PLACE(model.position), {"learned", "sinusoidal", "none"}},
       "What a token learns of its place."},
      {"model.embedding_norm", Flag{DBA_PLACE(model.embedding_norm)}, "LayerNorm on embedding plus position."},
      {"model.slots_norm", Flag{DBA_PLACE(model.slots_norm)}, "LayerNorm on the first slots Z; `dba` only."},
      {"model.scale_features", Flag{DBA_PLACE(model.scale_features)},
       "Whether embedded time steps are multiplied by √d; series only."},
      {"model.output_activation", Flag{DBA_PLACE(model.output_activation)}, "GELU on what the encoder puts out."},
      {"model.pooling", Choice{DBA_PLACE(model.pooling), {"first", "mean", "flatten"}},
       "From tokens to one vector: the first one, their mean, or all of them side by side."},
      {"model.pair_features", Choice{DBA_PLACE(model.pair_features), {"concatenate", "nli"}},
       "What the head sees of two vectors a, b: [b, a] or [a, b, a∘b, a − b]; pairs only."},
      {"model.head", Choice{DBA_PLACE(model.head), {"linear", "mlp"}}, "One linear layer, or two with a ReLU between."},
      {"model.head_hidden", Integer{DBA_PLACE(model.head_hidden), 0, 1 << 20},
       "Inner width of an `mlp` head; 0: model.d_ffn."},
      {"model.initialise", Choice{DBA_PLACE(model.initialise), {"luna", "bert", "torch_default"}},
       "How first weights are drawn."},
  };
}

std::vector<Key> optimiser_keys() {
  return {
      {"optimiser.name", Choice{DBA_PLACE(optimiser.name), {"adamw", "adam", "radam", "sgd"}},
       "`adamw` and `radam` take weight decay apart from the gradient, `adam` and `sgd` add it to the gradient."},
      {"optimiser.lr", Number{DBA_PLACE(optimiser.lr), kPositive}, "The highest learning rate."},
      {"optimiser.betas", NumberPair{DBA_PLACE(optimiser.betas), kFraction},
       "Decay of the running mean and of the running square; not `sgd`."},
      {"optimiser.eps", Number{DBA_PLACE(optimiser.eps), kPositive}, "Added to the denominator; not `sgd`."},
      {"optimiser.weight_decay", Number{DBA_PLACE(optimiser.weight_decay), kNotNegative}, "Pull of the weights to 0."},
      {"optimiser.momentum", Number{DBA_PLACE(optimiser.momentum), kFraction}, "Of `sgd`."},
      {"schedule.name", Choice{DBA_PLACE(schedule.name), {"constant", "inverse_sqrt", "cosine", "linear", "steps"}},
       "What follows the warm-up."},
      {"schedule.warmup", Integer{DBA_PLACE(schedule.warmup), 0, kNoLimit},
       "Updates in which the learning rate climbs along a line; at most a quarter of a run that `train.epochs` "
       "measures."},
      {"schedule.warmup_from", Number{DBA_PLACE(schedule.warmup_from), kNotNegative},
       "The learning rate at which the climb starts."},
      {"schedule.final_ratio", Number{DBA_PLACE(schedule.final_ratio), {0.0, 1.0}},
       "The last learning rate over the highest one; `cosine` and `linear` only."},
      {"schedule.milestones", Integers{DBA_PLACE(schedule.milestones), 1},
       "Updates at which the learning rate is multiplied by schedule.factor; `steps` only."},
      {"schedule.factor", Number{DBA_PLACE(schedule.factor), {0.0, 1.0, true}}, "Of `steps`."},
  };
}

std::vector<Key> train_keys() {
  return {
      {"train.updates", Integer{DBA_PLACE(train.updates), 0, kNoLimit}, "Updates of the weights; 0: no limit."},
      {"train.epochs", Integer{DBA_PLACE(train.epochs), 0, kNoLimit}, "Passes over the training data; 0: no limit."},
      {"train.accumulate", Integer{DBA_PLACE(train.accumulate), 1, 1 << 20},
       "Batches whose gradients make one update."},
      {"train.clip", Number{DBA_PLACE(train.clip), kNotNegative}, "Longest gradient, as a norm; 0: not clipped."},
      {"train.label_smoothing", Number{DBA_PLACE(train.label_smoothing), kFraction},
       "Probability spread over all classes."},
      {"train.class_weights", Choice{DBA_PLACE(train.class_weights), {"none", "balanced"}},
       "`balanced` weighs every class by the inverse of its frequency."},
      {"train.evaluate_every", Integer{DBA_PLACE(train.evaluate_every), 0, kNoLimit},
       "Updates from one evaluation on the validation data to the next; 0: by epochs."},
      {"train.evaluate_epochs", Integer{DBA_PLACE(train.evaluate_epochs), 1, kNoLimit},
       "Epochs from one evaluation to the next where train.evaluate_every is 0; the first epoch and the last one are "
       "evaluated in any case."},
      {"train.watch_test", Flag{DBA_PLACE(train.watch_test)},
       "Whether the test set is evaluated along with the validation data. It is only watched, and chooses no model "
       "unless protocol says so; the report then gives the test accuracy under all protocols that the run allows."},
      {"train.patience", Integer{DBA_PLACE(train.patience), 0, kNoLimit},
       "Training stops after so many evaluations without a better one; 0: never."},
      {"train.metric", Choice{DBA_PLACE(train.metric), {"accuracy", "macro_f1", "loss"}},
       "What makes a model the best one, on the validation data."},
      {"train.checkpoint_every", Integer{DBA_PLACE(train.checkpoint_every), 0, kNoLimit},
       "Updates from one checkpoint to the next; 0: by time alone."},
      {"train.checkpoint_seconds", Number{DBA_PLACE(train.checkpoint_seconds), kNotNegative},
       "Seconds from one checkpoint to the next, at most; 0: by updates alone."},
      {"train.keep", Integer{DBA_PLACE(train.keep), 1, 1 << 20}, "The newest checkpoints that stay."},
      {"train.log_every", Integer{DBA_PLACE(train.log_every), 1, kNoLimit},
       "Updates from one line of metrics to the next."},
      {"train.graph", Flag{DBA_PLACE(train.graph)},
       "Whether updates are recorded as CUDA graphs and repeated, on a GPU with the data on it; the numbers are the "
       "same."},
      {"train.init_from", Text{DBA_PLACE(train.init_from)},
       "A trained model, or the folder of its run, whose weights come first; empty: weights are drawn."},
      {"train.new_head", Flag{DBA_PLACE(train.new_head)},
       "Whether the head is drawn anew although weights come from train.init_from, as other classes need it."},
      {"expect.update", Integer{DBA_PLACE(expect.update), 0, kNoLimit},
       "The update by which expect.accuracy should have been reached; a warning says if not. 0: nothing is expected."},
      {"expect.accuracy", Number{DBA_PLACE(expect.accuracy), {0.0, 1.0}},
       "Accuracy on the validation data, as a fraction."},
  };
}

#undef DBA_PLACE

std::vector<Key> all_keys() {
  std::vector<Key> all;
  for (const auto part : {top_keys, data_keys, batch_keys, attention_keys, network_keys, optimiser_keys, train_keys})
    std::ranges::move(part(), std::back_inserter(all));
  return all;
}

}  // namespace

std::string_view Key::section() const {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

std::string_view Key::last_name() const {
  return name.substr(name.rfind('.') + 1);
}

std::span<const Key> keys() {
  static const std::vector<Key> all = all_keys();
  return all;
}

std::span<const Section> sections() {
  return kSections;
}

const Key* find_key(std::string_view name) {
  const auto all = keys();
  const auto found = std::ranges::find(all, name, &Key::name);
  return found == all.end() ? nullptr : &*found;
}

const Section* find_section(std::string_view name) {
  const auto* const found = std::ranges::find(kSections, name, &Section::name);
  return found == std::end(kSections) || name.empty() ? nullptr : found;
}

}  // namespace dba::config
