#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dba/nn/attention.h"
#include "dba/nn/dba_attention.h"

/// The zoo: the attentions that the paper compares DBA with, under one interface. docs/zoo.md has a page on each.
namespace dba::zoo {

/// Options of a member by name, as a configuration writes them: {{"window", "128"}, {"globals", "2"}}.
using OptionValues = std::map<std::string, std::string>;

/// The largest integer that an option takes where its record names no smaller one.
inline constexpr int64_t kLargestOption = int64_t{1} << 31;
/// The largest value of the option seed: a double, as many readers of JSON have for all numbers, holds it exactly.
inline constexpr int64_t kLargestSeed = int64_t{1} << 53;

/// One option that a member has beside those that all share (d, heads, dropout, bias).
struct Option {
  std::string name;
  std::string fallback;  ///< its value where none is given
  std::string meaning;
  int64_t least = 0;                 ///< the smallest value of an integer
  std::vector<std::string> choices;  ///< what it may be; empty: an integer
  int64_t most = kLargestOption;     ///< the largest value of an integer
};

/// How the memory grows with the length n; Capabilities::complexity says how the time does.
enum class Growth { linear, linearithmic, sub_quadratic, quadratic };
std::string to_string(Growth growth);

/// What may be asked of a member.
struct Capabilities {
  bool exact = false;                 ///< softmax attention between all tokens; else an approximation or a substitute
  bool learned_per_position = false;  ///< has parameters that belong to positions
  bool needs_max_length = false;      ///< the option max_length must be given, and longer sequences are refused
  bool deterministic = true;          ///< no random choices; else the option seed and the layer decide them, for good
  bool hashes = false;                ///< hashes tokens: a rounding may change who sees whom
  bool cross_attention = false;       ///< may attend to another stream
  bool masks = true;                  ///< lengths, masks and packed rows; a padded token has no influence
  bool dropout = false;               ///< has a map that dropout acts on
  bool slots = false;                 ///< may carry slots from layer to layer
  Growth growth = Growth::quadratic;
  std::string complexity;  ///< of the time in n, for one head of width 1, options in words
};

struct Member {
  std::string name;   ///< as configurations know it
  std::string title;  ///< as people know it
  std::string paper;
  std::string about;  ///< a paragraph with its formula
  std::vector<Option> options;
  Capabilities capabilities;
  /// Options are complete and checked; use `make`.
  std::function<std::shared_ptr<torch::nn::Module>(const DBAttentionOptions&, const OptionValues&)> build;
};

/// All twenty, softmax attention and DBA first.
const std::vector<Member>& members();
/// Refuses an unknown name with the nearest known one.
const Member& member(const std::string& name);

/// A new layer of the member of that name, which is a dba::Attention. Of `options` every member takes d, heads,
/// dropout and bias; Luna takes d_p, z_update, hands_on_z and z_dropout too, and DBA everything.
std::shared_ptr<torch::nn::Module> make(const std::string& name, const DBAttentionOptions& options,
                                        const OptionValues& values = {});

/// "window=128, globals=2" as option values.
OptionValues parse_values(const std::string& text);

/// Tokens as cleared rows (N, d) and the sequences they form.
struct Stream {
  at::Tensor rows;
  const Sequences& sequences;
};

/// What all members but DBA are: the shared options, the edge, projections where a member has them, cross-attention
/// where it is defined.
class ZooAttention : public torch::nn::Module, public Attention {
 public:
  using Attention::forward;
  AttentionOutput attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                         bool need_weights) override;
  /// Tokens of x attend to those of `memory`: (M, d) or (B, m, d), in as many sequences. Refused where the member's
  /// capabilities say so.
  AttentionOutput attend_to(const at::Tensor& x, const Sequences& sequences, const at::Tensor& memory,
                            const Sequences& memory_sequences, const at::Tensor& z = {});
  /// Draws all parameters anew; random choices stay as the seed made them.
  void reset_parameters();
  /// The fields that `attend` reads, in the order of named_parameters() and behind them named_buffers(). Whoever keeps
  /// the tensors of a layer elsewhere, as Python does, puts them there for a call.
  std::vector<at::Tensor*> tensor_fields();
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  const DBAttentionOptions options;
  const OptionValues values;
  torch::nn::Linear w_q{nullptr}, w_k{nullptr}, w_v{nullptr}, w_o{nullptr};  ///< d → d, where the member has them

 protected:
  ZooAttention(std::string name, const DBAttentionOptions& options_, OptionValues values_);
  /// What the member computes: rows like those of `queries`. In self-attention both streams are the same.
  virtual at::Tensor mix(const Stream& queries, const Stream& memory) = 0;
  /// The same for members that carry slots.
  virtual AttentionOutput mix_with_slots(const Stream& queries, const Stream& memory, const at::Tensor& z);
  /// Draws the parameters that are not linear layers.
  virtual void draw_parameters() {}

  torch::nn::Linear project(const std::string& name, int64_t in, int64_t out);
  /// Registers w_q, w_k, w_v and w_o.
  void register_projections();
  /// Registers a tensor of the member's own, which lives in `field`.
  void hold_parameter(at::Tensor& field, const std::string& name, const at::Tensor& value);
  void hold_buffer(at::Tensor& field, const std::string& name, const at::Tensor& value);
  int64_t integer(const std::string& option) const;
  const std::string& choice(const std::string& option) const;
  /// Of this layer's random choices: the option's for the first layer of a stack, 1,000,003 more for each one behind
  /// it, from 0 on again beyond kLargestSeed.
  int64_t seed() const {
    return (integer("seed") + 1000003 * options.layer()) % (kLargestSeed + 1);
  }
  int64_t head_width() const {
    return options.d() / options.heads();
  }
  /// The rate of dropout of a map now: 0 but in training.
  double drop_rate() const {
    return is_training() ? options.dropout() : 0.0;
  }

 private:
  AttentionOutput respond(const at::Tensor& x, const Stream& queries, const Stream& memory, const at::Tensor& z);
  /// The sequences with a bound of their lengths that max_length allows; refused where there is none.
  Sequences within_max_length(const Sequences& sequences) const;
  void clone_(torch::nn::Module& other, const std::optional<at::Device>& device) override;
  const std::string name_;
  std::vector<at::Tensor*> own_parameters_, own_buffers_;
};

}  // namespace dba::zoo
