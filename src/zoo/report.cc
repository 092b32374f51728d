#include "zoo/report.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "dba/zoo.h"

namespace dba::zoo {
namespace {

using Json = nlohmann::ordered_json;

/// The layer whose parameters are counted: that of the paper's efficiency table.
constexpr int64_t kWidth = 256, kHeads = 4, kLength = 1024;

int64_t parameter_count(const Member& member) {
  OptionValues values;
  if (member.capabilities.needs_max_length) {
    values["max_length"] = std::to_string(kLength);
  }
  const auto layer = make(member.name, DBAttentionOptions(kWidth, kHeads).z_update(ZUpdate::own), values);
  int64_t count = 0;
  for (const auto& parameter : layer->parameters()) {
    count += parameter.numel();
  }
  return count;
}

/// Characters, not bytes: "√" is one.
size_t shown_width(const std::string& text) {
  size_t width = 0;
  for (const char c : text) {
    width += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }
  return width;
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width > shown_width(text) ? width - shown_width(text) : 0, ' ');
}

std::string yes(bool value) {
  return value ? "yes" : "no";
}

std::vector<std::string> heading() {
  return {"name",  "map",   "per position", "max_length", "random",
          "cross", "masks", "dropout",      "complexity", "parameters"};
}

std::vector<std::string> line_of(const Member& member) {
  const auto& c = member.capabilities;
  return {member.name,
          c.exact ? "exact" : "approximate",
          yes(c.learned_per_position),
          yes(c.needs_max_length),
          c.deterministic ? "no" : "seeded",
          yes(c.cross_attention),
          yes(c.masks),
          yes(c.dropout),
          c.complexity,
          std::to_string(parameter_count(member))};
}

std::string value_of(const Option& option) {
  if (option.choices.empty()) {
    const bool bounded = option.most < kLargestOption;
    return "integer, at least " + std::to_string(option.least) +
           (bounded ? ", at most " + std::to_string(option.most) : "");
  }
  return "one of " + std::string(c10::Join(", ", option.choices));
}

std::string fallback_of(const Option& option) {
  return option.fallback.empty() ? "must be given" : option.fallback;
}

Json as_json(const Member& member) {
  const auto& c = member.capabilities;
  Json options = Json::array();
  for (const auto& option : member.options) {
    Json one = {{"name", option.name},
                {"default", option.fallback.empty() ? Json() : Json(option.fallback)},
                {"meaning", option.meaning}};
    if (option.choices.empty()) {
      one["least"] = option.least;
      one["most"] = option.most;
    } else {
      one["choices"] = option.choices;
    }
    options.push_back(one);
  }
  return {{"name", member.name},
          {"title", member.title},
          {"paper", member.paper},
          {"about", member.about},
          {"options", options},
          {"capabilities",
           {{"exact", c.exact},
            {"learned_per_position", c.learned_per_position},
            {"needs_max_length", c.needs_max_length},
            {"deterministic", c.deterministic},
            {"hashes", c.hashes},
            {"cross_attention", c.cross_attention},
            {"masks", c.masks},
            {"dropout", c.dropout},
            {"slots", c.slots},
            {"growth", to_string(c.growth)},
            {"complexity", c.complexity}}},
          {"parameters", parameter_count(member)}};
}

constexpr const char* kPreface = R"md(# The zoo

Twenty attentions under one interface: softmax attention, DBA, and the eighteen others of the paper's tables. All are
bidirectional; all take packed rows, lengths or a mask through `dba::Sequences`, any n from 1 (and empty sequences), and
give zeros in rows of nobody; a padded token has no influence on any other. `dba zoo` prints the table below,
`dba zoo NAME` one member. This page is made from the registry that the library itself builds by.

All but DBA and Luna, and softmax attention of packed tokens, lay a batch out with its sequences padded to one length.
Packed sequences on a CPU that would have more than four places for a token then are computed in classes of similar
lengths; in a padded batch, and on a GPU, where only the device knows the lengths, every sequence costs as much as the
longest: sort by length (`batch.bucket`) where they differ.

## Use

By name in C++, with options where the member has some:

    auto layer = dba::zoo::make("longformer", dba::DBAttentionOptions(256, 4), {{"window", "128"}});
    auto y = dynamic_cast<dba::Attention&>(*layer).forward(x, sequences).y;

`dba::make_attention`, and with it every encoder and classifier, takes the same as one text:

    EncoderLayerOptions(256, 4, 1024).attention("longformer(window=128, globals=2)")

and a training configuration names both, with max_length taken from the data where a member needs it:

    model:
      method: longformer
      method_options: window=128, globals=2

In Python a member is a module that is called as `dba.DBAttention` is, with padding masks, packed rows or nested tensors:

    attention = dba.zoo.make("longformer", 256, 4, window=128, globals=2)
    y, _ = attention(x, key_padding_mask=padding)

Its parameters are ordinary ones of PyTorch, under the names that they have in C++; each call hands them to the C++
layer, so no method is written twice, and both languages compute the same numbers. `dba.zoo.members()` has the records
below, and `dba.load` takes what `dba train` trained with any of them. DBA's layer is `dba.DBAttention`, which in Python
has cross-attention too.

`dba bench layer` times them (`--methods "longformer(window=128),dba"`), `dba reproduce efficiency` measures them all in the
paper's Text model, and bench/zoo_speed.py sets each beside a straightforward PyTorch version.

Every member takes d, heads, dropout and bias; those that have a map drop out there, the others have no attention
dropout. `dba::zoo::ZooAttention::attend_to` is cross-attention where the table has it. Random choices come from the
member's `seed` and nothing else: they are the same for a sequence alone and in a batch, and stay the same for the life
of the layer. In a model layer i, counted from 0, has the seed 1,000,003·i above that of the first. Reformer and YOSO hash
tokens: one at the edge of a bucket may fall to either side, as rounding has it, so in single and half precision they are
now and then further from float64 than the others.

Training keeps no map between the passes: it stays inside PyTorch's fused attention, or exists for some queries at a
time and is computed again for their gradients, dropout included. Synthesizer alone keeps n² numbers: scores that it
computed, of every sequence (dense, factorised_dense) or for all (factorised_random), or the one map of a plain batch
without dropout (random, factorised_random). Second derivatives of what is computed again, and PyTorch's transforms of
functions (`torch.func.grad` and its like), are refused where a call takes no way through PyTorch's own operations.

Backward passes belong outside of `torch.autocast`, as PyTorch advises. Inside they work too, but for cosFormer in
float16: PyTorch takes gradients of products in that type then, and where a token sees hardly anything they leave its
range.

Bounds of a batch without padding, its masks, lists of blocks and the like are made of nothing but numbers that the host
knows. On a GPU each costs launches, which in a call of few tokens take longer than its products. There were three ways:
to make them in every call, as PyTorch code mostly does; to hold them as buffers of a layer, which would ask a max_length
of every member; or to keep what the last calls made. The library does the last (`src/ops/kept_tensors.h`), on CPUs too:
the process keeps the latest of them, 16 MB each and 64 MB together at most, for calls of the same shape, type, device and
stream, and the layers of a model share them; `torch.ops.dba.forget_kept_tensors()` gives the memory back. A call that is
recorded as a CUDA graph makes its own, which belong to the graph. Masks of mixed lengths are made anew in every call.

Where Long-Range Arena's released code, from which many published figures come, does something else than the method's
paper, the member follows the paper and its paragraph names the difference.

## Other packages

Tests compare outputs and gradients with these packages, in float64 and with the same weights
(tests/python/test_zoo_packages.py, tests/python/test_zoo_transformers.py):

| member | package | agrees at | elsewhere the package differs |
| --- | --- | --- | --- |
| `linformer` | linformer | `share=heads`, any n | `share_kv` there makes one projection of keys and values too; queries, keys and values have no bias; it knows no padding |
| `performer` | performer-pytorch | both kernels, plain batches | padding reaches the largest exponent of the keys |
| `nystromformer` | nystrom-attention | one sequence and one head, n a multiple of the landmarks | it divides the first iterate by the largest norm of all heads and sequences of the batch; other lengths get zeros in front, which enter the first landmark |
| `nystromformer` | transformers | the exact norm, any heads and batch, n a multiple of the landmarks and more than they are, each sequence alone | by default it divides by the largest norm of the batch; padding enters landmarks and convolution |
| `local` | local-attention | no look to either side, with a mask | without a mask the zeros that fill the last block are attended to |
| `longformer` | local-attention | `globals=0` is its exact window | |
| `longformer` | transformers | an even window, the first tokens global, any lengths, with a mask | its softmax is always in float32; lengths are filled up to a multiple of the window |
| `reformer` | reformer-pytorch | own buckets alone, pairs once, n a multiple of two chunks, our hashes | by default tokens see other buckets of their chunk too, pairs count in every round, hashes are drawn anew at every call |
| `sinkhorn` | sinkhorn-transformer | the sorted attention, where values are keys | sorted values are taken from the sorted keys; its sort network reads queries and keys, with Gumbel noise |
| `bigbird` | transformers | `window=3`, `random` of 1 or more, our random blocks, six blocks or more, each sequence alone | the last block is the batch's, not the sequence's; outside training the first block stands for all random ones, and counts again |
| `fnet` | transformers | each sequence alone, any n | it transforms padding; its products with matrices are in complex64 |
| `yoso` | transformers | `kind=expectation`, no convolution, the layer's mask of 0 and −10,000 | its model hands the layer 1 and 0, which hides no padding; sampling is by CUDA kernels of its own |

linear-attention-transformer is not compared: its weights are a softmax of the queries over the width times one of the
keys over the tokens, not the Linear Transformer's elu(x) + 1. Nor is the Reformer of transformers: its tokens see other
buckets of their chunks, its first chunk sees the last, pairs count in every round, and scores are √d_h times as large.

## Members

"map": exact is softmax attention between all tokens, the others approximate or replace it. "per position": parameters
that belong to positions. "complexity": of one head in the length n. "parameters": of a layer with d = 256, four heads
and, where positions have parameters, max_length = 1024.

)md";

constexpr const char* kUnderTable =
    "\nComplexity: of one head in the length n. Parameters: of a layer with d = 256, four heads and, where positions "
    "have "
    "some, max_length = 1024.\n`dba zoo NAME` has a member's formula, paper and options.\n";

}  // namespace

std::string table() {
  std::vector<std::vector<std::string>> lines{heading()};
  for (const auto& member : members()) {
    lines.push_back(line_of(member));
  }
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], shown_width(line[i]));
    }
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      text += i + 1 < line.size() ? padded(line[i], widths[i] + 2) : line[i] + "\n";
    }
  }
  return text + kUnderTable;
}

std::string json(const std::string& name) {
  if (!name.empty()) {
    return as_json(member(name)).dump(2) + "\n";
  }
  Json all = Json::array();
  for (const auto& one : members()) {
    all.push_back(as_json(one));
  }
  return Json{{"members", all}, {"parameters_of", {{"d", kWidth}, {"heads", kHeads}, {"max_length", kLength}}}}.dump(
             2) +
         "\n";
}

std::string page(const std::string& name) {
  const auto& record = member(name);
  std::ostringstream text;
  text << record.title << " (" << record.name << ")\n" << record.paper << "\n\n" << record.about << "\n\n";
  const auto names = heading(), line = line_of(record);
  for (size_t i = 1; i < names.size(); ++i) {
    text << padded(names[i], 14) << line[i] << "\n";
  }
  text << (record.options.empty() ? "\nNo options of its own.\n" : "\nOptions\n");
  for (const auto& option : record.options) {
    text << "  " << padded(option.name, 12) << option.meaning << " (" << value_of(option) << "; default "
         << fallback_of(option) << ")\n";
  }
  return text.str();
}

std::string markdown() {
  std::ostringstream text;
  text << kPreface;
  const auto row = [&](const std::vector<std::string>& cells) {
    for (const auto& cell : cells) {
      text << "| " << cell << " ";
    }
    text << "|\n";
  };
  row(heading());
  row(std::vector<std::string>(heading().size(), "---"));
  for (const auto& record : members()) {
    row(line_of(record));
  }
  for (const auto& record : members()) {
    text << "\n### `" << record.name << "`: " << record.title << "\n\n"
         << record.paper << ".\n\n"
         << record.about << "\n";
    if (!record.options.empty()) {
      text << "\n| option | value | default | meaning |\n|---|---|---|---|\n";
    }
    for (const auto& option : record.options) {
      text << "| `" << option.name << "` | " << value_of(option) << " | " << fallback_of(option) << " | "
           << option.meaning << " |\n";
    }
  }
  return text.str();
}

}  // namespace dba::zoo
