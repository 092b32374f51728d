#include <torch/torch.h>

#include "dba/zoo.h"
#include "nn/dba_checks.h"
#include "nn/rows.h"
#include "ops/checks.h"
#include "zoo/length_classes.h"

namespace dba::zoo {
namespace {

Stream stream_of(const std::string& name, const char* argument, const at::Tensor& x, const Sequences& sequences,
                 int64_t d) {
  const auto rows = as_rows(name.c_str(), argument, x, sequences, d);
  return {clear_rows(rows, real_rows(sequences)), sequences};
}

void copy_tensors(const torch::OrderedDict<std::string, at::Tensor>& to,
                  const torch::OrderedDict<std::string, at::Tensor>& from, const std::optional<at::Device>& device) {
  for (const auto& item : from) {
    auto tensor = to[item.key()];
    auto copy = item.value().detach().clone();
    tensor.set_data(device ? copy.to(*device) : copy);
    tensor.set_requires_grad(item.value().requires_grad());
  }
}

}  // namespace

ZooAttention::ZooAttention(std::string name, const DBAttentionOptions& options_, OptionValues values_)
    : torch::nn::Module(name), options(options_), values(std::move(values_)), name_(std::move(name)) {
  check_options(name_.c_str(), options);
}

AttentionOutput ZooAttention::attend(const at::Tensor& x, const Sequences& sequences, const at::Tensor& z,
                                     bool need_weights) {
  TORCH_CHECK(!need_weights, "dba::", name_, ": need_weights must be false, for this attention keeps no map to show; ",
              "dba::SoftmaxAttention and dba::DBAttention do");
  const auto allowed = within_max_length(sequences);
  const auto stream = stream_of(name_, "x", x, allowed, options.d());
  return respond(x, stream, stream, z);
}

AttentionOutput ZooAttention::attend_to(const at::Tensor& x, const Sequences& sequences, const at::Tensor& memory,
                                        const Sequences& memory_sequences, const at::Tensor& z) {
  TORCH_CHECK(member(name_).capabilities.cross_attention, "dba::", name_,
              ": has no cross-attention, for its definition needs queries and keys of the same tokens; `dba zoo` ",
              "lists the members that have one");
  TORCH_CHECK(sequences.count() == memory_sequences.count(), "dba::", name_, ": memory must have the ",
              sequences.count(), " sequences that x has, got ", memory_sequences.count());
  const auto allowed = within_max_length(memory_sequences);  // positions have parameters on the keys' side alone
  const auto queries = stream_of(name_, "x", x, sequences, options.d());
  check_type(name_.c_str(), "memory", memory, w_o->weight);
  return respond(x, queries, stream_of(name_, "memory", memory, allowed, options.d()), z);
}

AttentionOutput ZooAttention::respond(const at::Tensor& x, const Stream& queries, const Stream& memory,
                                      const at::Tensor& z) {
  if (w_o) {
    check_type(name_.c_str(), "x", x, w_o->weight);
  } else {
    TORCH_CHECK(at::isFloatingType(x.scalar_type()), "dba::", name_, ": x must be of a floating type, got ",
                ops::describe(x));
  }
  if (queries.sequences.count() == 0) {  // every row is nobody's and cleared already
    return {queries.rows.view(x.sizes()), z, std::nullopt};
  }
  auto output = mix_with_slots(queries, memory, z);
  output.y = clear_rows(output.y, real_rows(queries.sequences)).view(x.sizes());
  return output;
}

AttentionOutput ZooAttention::mix_with_slots(const Stream& queries, const Stream& memory, const at::Tensor& z) {
  AttentionOutput output;
  const auto classes = length_classes(queries.sequences, memory.sequences);
  output.y = classes.empty()
                 ? mix(queries, memory)
                 : mix_by_class(classes, queries, memory,
                                [this](const Stream& asking, const Stream& asked) { return mix(asking, asked); });
  output.z = z;
  return output;
}

Sequences ZooAttention::within_max_length(const Sequences& sequences) const {
  const auto found = values.find("max_length");
  if (found == values.end() || sequences.count() == 0 || sequences.longest() <= integer("max_length")) {
    return sequences;
  }
  // A padded batch may be longer than its sequences. Those on a GPU would have to be waited for.
  auto result = sequences;
  result.max_length = sequences.begin.is_cpu() ? sequences.lengths().max().item<int64_t>() : sequences.longest();
  TORCH_CHECK(result.max_length <= integer("max_length"), "dba::", name_,
              ": sequences must have at most max_length = ", found->second, " tokens, got one of ", result.max_length,
              sequences.begin.is_cpu() ? "" : " (a batch's padding counts on a GPU)",
              "; make the layer with a larger max_length, or cut the sequence");
  return result;
}

void ZooAttention::reset_parameters() {
  for (const auto& child : children()) {
    if (auto* linear = child->as<torch::nn::LinearImpl>()) {
      linear->reset_parameters();
    } else if (auto* norm = child->as<torch::nn::LayerNormImpl>()) {
      norm->reset_parameters();
    } else if (auto* slots = child->as<SlotsImpl>()) {
      slots->reset_parameters();
    }
  }
  draw_parameters();
}

std::shared_ptr<torch::nn::Module> ZooAttention::clone(const std::optional<at::Device>& device) const {
  auto copy = make(name_, options, values);
  auto& layer = dynamic_cast<ZooAttention&>(*copy);
  copy_tensors(layer.named_parameters(), named_parameters(), device);
  copy_tensors(layer.named_buffers(), named_buffers(), device);
  layer.train(is_training());
  return copy;
}

void ZooAttention::clone_(torch::nn::Module& other, const std::optional<at::Device>& device) {
  copy_tensors(named_parameters(), other.named_parameters(), device);
  copy_tensors(named_buffers(), other.named_buffers(), device);
  train(other.is_training());
}

void ZooAttention::pretty_print(std::ostream& stream) const {
  stream << "dba::zoo::" << name_ << "(d=" << options.d() << ", heads=" << options.heads()
         << ", dropout=" << options.dropout() << ", bias=" << std::boolalpha << options.bias();
  for (const auto& [option, value] : values) {
    stream << ", " << option << "=" << value;
  }
  stream << ")";
}

torch::nn::Linear ZooAttention::project(const std::string& name, int64_t in, int64_t out) {
  return register_module(name, make_linear(in, out, options.bias()));
}

void ZooAttention::register_projections() {
  w_q = project("w_q", options.d(), options.d());
  w_k = project("w_k", options.d(), options.d());
  w_v = project("w_v", options.d(), options.d());
  w_o = project("w_o", options.d(), options.d());
}

void ZooAttention::hold_parameter(at::Tensor& field, const std::string& name, const at::Tensor& value) {
  field = register_parameter(name, value);
  own_parameters_.push_back(&field);
}

void ZooAttention::hold_buffer(at::Tensor& field, const std::string& name, const at::Tensor& value) {
  field = register_buffer(name, value);
  own_buffers_.push_back(&field);
}

std::vector<at::Tensor*> ZooAttention::tensor_fields() {
  auto fields = own_parameters_;
  const auto add = [&](at::Tensor& field) {
    if (field.defined()) {
      fields.push_back(&field);
    }
  };
  for (const auto& child : children()) {
    if (auto* linear = child->as<torch::nn::LinearImpl>()) {
      add(linear->weight);
      add(linear->bias);
    } else if (auto* norm = child->as<torch::nn::LayerNormImpl>()) {
      add(norm->weight);
      add(norm->bias);
    } else if (auto* slots = child->as<SlotsImpl>()) {
      add(slots->z);
    }
  }
  fields.insert(fields.end(), own_buffers_.begin(), own_buffers_.end());
  return fields;
}

int64_t ZooAttention::integer(const std::string& option) const {
  return std::stoll(values.at(option));
}

const std::string& ZooAttention::choice(const std::string& option) const {
  return values.at(option);
}

}  // namespace dba::zoo
