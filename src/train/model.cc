#include "dba/train/model.h"

#include <torch/torch.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "dba/nn/classifier.h"
#include "dba/nn/dual_encoder.h"
#include "dba/nn/make_attention.h"
#include "dba/nn/serialize.h"
#include "dba/zoo.h"

namespace dba::train {
namespace {

using Json = nlohmann::ordered_json;

/// The attention and its options as `make_attention` takes them.
std::string attention_of(const config::ModelConfig& m, std::int64_t longest) {
  auto values = zoo::parse_values(m.method_options);
  if (zoo::member(m.method).capabilities.needs_max_length) {
    values.emplace("max_length", std::to_string(longest));
  }
  std::string text;
  for (const auto& [name, value] : values) {
    text += (text.empty() ? "" : ", ") + name + "=" + value;
  }
  return text.empty() ? m.method : m.method + "(" + text + ")";
}

/// Refused now rather than when the longest sequence comes.
void check_longest(const ModelPlan& plan) {
  const auto values = zoo::parse_values(plan.config.model.method_options);
  if (const auto given = values.find("max_length"); given != values.end()) {
    TORCH_CHECK(std::atoll(given->second.c_str()) >= plan.longest,
                "dba::Model: model.method_options: max_length=", given->second,
                " is less than the longest sequence may have, ", plan.longest,
                " tokens; leave it out, or cut the data with data.max_length=", given->second);
  }
}

ClassifierOptions classifier_options(const ModelPlan& plan) {
  check_longest(plan);
  const auto& m = plan.config.model;
  auto attention = DBAttentionOptions(m.d, m.heads)
                       .d_p(m.d_p)
                       .d_in(m.d_in)
                       .form(parse_form(m.form))
                       .normalise(parse_normalise(m.normalise))
                       .z_update(parse_z_update(m.z_update))
                       .compress_length(m.compress_length)
                       .compress_width(m.compress_width)
                       .bias(m.bias)
                       .dropout(m.attention_dropout)
                       .z_dropout(m.dropout);
  auto layer = EncoderLayerOptions(m.d, m.heads, m.d_ffn)
                   .attention(attention_of(m, plan.longest))
                   .attention_options(attention)
                   .dropout(m.dropout)
                   .activation_dropout(m.activation_dropout)
                   .norm_first(m.norm_first)
                   .activation(parse_activation(m.activation))
                   .norm(parse_norm_kind(m.norm));
  auto encoder = EncoderOptions(layer, m.layers).tied(m.tied).slots_layer_norm(m.slots_norm);
  auto options = ClassifierOptions(encoder, static_cast<std::int64_t>(plan.encoding.labels.size()))
                     .scale_features(m.scale_features)
                     .position(parse_position(m.position))
                     .max_length(plan.longest)
                     .embedding_norm(m.embedding_norm)
                     .embedding_dropout(m.dropout)
                     .output_activation(m.output_activation)
                     .output_dropout(m.output_activation ? m.dropout : 0.0)
                     .pooling(parse_pool(m.pooling))
                     .head(parse_head_kind(m.head))
                     .head_hidden(m.head_hidden > 0 ? m.head_hidden : m.d_ffn)
                     .initialise(parse_initialise(m.initialise));
  if (plan.encoding.kind == data::Kind::series) {
    options.features(static_cast<std::int64_t>(plan.encoding.channels));
  } else {
    options.vocabulary(static_cast<std::int64_t>(plan.encoding.tokeniser.vocabulary_size()));
  }
  return options;
}

std::shared_ptr<torch::nn::Module> make_module(const ModelPlan& plan) {
  const auto options = classifier_options(plan);
  if (plan.encoding.kind == data::Kind::pairs) {
    return std::make_shared<DualEncoderImpl>(
        DualEncoderOptions(options).pair_features(parse_pair_features(plan.config.model.pair_features)));
  }
  return std::make_shared<ClassifierImpl>(options);
}

std::filesystem::path model_file(const std::filesystem::path& path) {
  return std::filesystem::path(path).extension() == ".safetensors" ? path : path / kModelFile;
}

const std::string& metadata_of(const TensorFile& file, const char* key, const std::filesystem::path& path) {
  const auto found = file.metadata.find(key);
  if (found == file.metadata.end()) {
    throw bytes::FormatError(path.string() + ": no \"" + key +
                             "\" in its metadata; it is no model that dba has trained");
  }
  return found->second;
}

ModelPlan plan_of(const TensorFile& file, const std::filesystem::path& path) {
  ModelPlan plan;
  plan.config = config::parse_config(metadata_of(file, "config", path), path.string() + " (config)");
  plan.encoding = data::Encoding::from_json(metadata_of(file, "encoding", path), path.string() + " (encoding)");
  try {
    const auto details = Json::parse(metadata_of(file, "details", path));
    plan.longest = details.at("longest").get<std::int64_t>();
    plan.standardise.mean = details.at("mean").get<std::vector<double>>();
    plan.standardise.deviation = details.at("deviation").get<std::vector<double>>();
  } catch (const nlohmann::json::exception& error) {
    throw bytes::FormatError(path.string() + ": bad details in its metadata: " + error.what());
  }
  return plan;
}

/// Refuses a file whose configuration claims a larger model than its tensors make, before memory is asked for it.
void check_size(const ModelPlan& plan, const TensorFile& file, const std::filesystem::path& path) {
  const auto& m = plan.config.model;
  double held = 0;
  for (const auto& [name, tensor] : file.tensors) {
    held += static_cast<double>(tensor.numel());
  }
  const auto d = static_cast<double>(m.d);
  const auto slots = static_cast<double>(m.heads) * static_cast<double>(m.d_p);
  const auto attention = m.method == "fnet" ? 0.0 : d;
  double claimed =
      (m.tied ? 1.0 : static_cast<double>(m.layers)) * d * (2.0 * static_cast<double>(m.d_ffn) + attention);
  claimed += m.method == "dba" && m.compress_length ? slots * d : 0.0;
  claimed += m.position == "learned" ? static_cast<double>(plan.longest) * d : 0.0;
  claimed += m.head == "mlp" ? static_cast<double>(m.head_hidden) * d : 0.0;
  if (claimed > held) {
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%.0f numbers or more, its tensors hold %.0f", claimed, held);
    throw bytes::FormatError(path.string() + ": its configuration claims " + numbers);
  }
}

}  // namespace

void check_attention(const config::ModelConfig& model) {
  constexpr std::int64_t kAnyLength = 1;
  dba::check_attention(attention_of(model, kAnyLength));
}

Model::Model(ModelPlan plan) : plan_(std::move(plan)), module_(make_module(plan_)) {}

at::Tensor Model::forward(const Batch& batch) {
  if (auto* pair = dynamic_cast<DualEncoderImpl*>(module_.get())) {
    return pair
        ->forward(batch.input, batch.sequences, batch.second_input, batch.second_sequences, batch.positions,
                  batch.second_positions)
        .to(at::kFloat);
  }
  return dynamic_cast<ClassifierImpl&>(*module_).forward(batch.input, batch.sequences, batch.positions).to(at::kFloat);
}

std::int64_t Model::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& parameter : module_->parameters()) {
    count += parameter.numel();
  }
  return count;
}

double Model::operations(double length) const {
  const auto& m = plan_.config.model;
  const auto d = static_cast<double>(m.d);
  const auto slots = static_cast<double>(m.heads * m.d_p);
  if (m.method != "dba" && m.method != "softmax") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  double attention = 4 * d * d + 2 * length * d;
  if (m.method == "dba" && m.compress_length) {
    attention = (m.form == "released" ? 4 : 8) * slots * d;
  }
  const auto feed_forward = 2 * d * static_cast<double>(m.d_ffn);
  const auto embedding = static_cast<double>(plan_.encoding.channels) * d;
  return length * (static_cast<double>(m.layers) * (attention + feed_forward) + embedding);
}

void Model::save(const std::filesystem::path& path) const {
  Json details;
  details["longest"] = plan_.longest;
  details["mean"] = plan_.standardise.mean;
  details["deviation"] = plan_.standardise.deviation;
  save_safetensors(
      *module_, path,
      {{"config", config::to_yaml(plan_.config)}, {"encoding", plan_.encoding.to_json()}, {"details", details.dump()}});
}

ModelPlan Model::read_plan(const std::filesystem::path& path) {
  const auto file_path = model_file(path);
  return plan_of(load_tensors(file_path), file_path);
}

Model Model::load(const std::filesystem::path& path) {
  const auto file_path = model_file(path);
  const auto file = load_tensors(file_path);
  auto plan = plan_of(file, file_path);
  check_size(plan, file, file_path);
  Model model(std::move(plan));
  load_safetensors(*model.module_, file_path);
  return model;
}

void Model::take_weights(const std::filesystem::path& path, bool new_head) {
  const auto file_path = model_file(path);
  const auto file = load_tensors(file_path);
  const auto other = plan_of(file, file_path);
  TORCH_CHECK(other.encoding.kind == plan_.encoding.kind && other.encoding.channels == plan_.encoding.channels,
              "dba::Model: train.init_from ", file_path.string(), " was trained on ",
              data::name_of(other.encoding.kind), " with ", bytes::counted(other.encoding.channels, "channel"),
              ", this data is ", data::name_of(plan_.encoding.kind), " with ", plan_.encoding.channels);
  TORCH_CHECK(new_head || other.encoding.labels == plan_.encoding.labels, "dba::Model: train.init_from ",
              file_path.string(), " has other classes than this data; set train.new_head to true to learn a new head");
  const torch::NoGradGuard no_grad;
  std::string problems;
  for (auto& [name, tensor] : state_dict(*module_)) {
    if (new_head && name.rfind("head.", 0) == 0) {
      continue;
    }
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end() || found->second.sizes() != tensor.sizes()) {
      problems += "\n  " + name + (found == file.tensors.end() ? " is missing" : " has another shape");
      continue;
    }
    tensor.copy_(found->second);
  }
  TORCH_CHECK(problems.empty(), "dba::Model: train.init_from ", file_path.string(),
              " does not fit the model:", problems);
}

}  // namespace dba::train
