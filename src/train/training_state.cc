#include "train/training_state.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "bytes/count.h"
#include "dba/bytes/errors.h"
#include "dba/nn/serialize.h"

namespace dba::train {
namespace {

using Json = nlohmann::ordered_json;

/// Name and tensor of all that is saved, in a fixed order. Random states are made on the spot.
std::vector<std::pair<std::string, at::Tensor>> tensors_of(const TrainingState& state) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (auto& [name, tensor] : state_dict(state.model.module())) {
    all.emplace_back("model/" + name, tensor);
  }
  for (const auto& [name, tensor] : state.optimiser.state()) {
    all.emplace_back("optimiser/" + name, tensor);
  }
  all.emplace_back("window/loss", state.window.loss);
  all.emplace_back("window/right", state.window.right);
  all.emplace_back("window/examples", state.window.examples);
  return all;
}

at::Generator generator_of(at::Device device) {
  return at::globalContext().defaultGenerator(device);
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// Checkpoints of earlier versions do not say what they were made with.
void check_data(const run::Checkpoint& checkpoint, const std::string& data) {
  const auto metadata = Json::parse(checkpoint.metadata(), nullptr, /*allow_exceptions=*/false);
  const auto known = metadata.is_object() ? metadata.value("data", Json()) : Json();
  if (known.is_string() && known != data) {
    throw bytes::FormatError(checkpoint.path().string() + ": was made with other training data (digest " +
                             known.get<std::string>() + ", here " + data +
                             "); bring those back, or begin another run with them, from this one's model with "
                             "train.init_from if it shall go on from there");
  }
}

}  // namespace

Window::Window(at::Device device)
    : loss(torch::zeros({}, torch::dtype(at::kDouble).device(device))),
      right(torch::zeros_like(loss)),
      examples(torch::zeros_like(loss)) {}

void Window::clear() {
  for (auto tensor : {loss, right, examples}) {
    tensor.zero_();
  }
}

void save_checkpoint(run::CheckpointStore& store, const TrainingState& state) {
  auto tensors = tensors_of(state);
  tensors.emplace_back("random/cpu", generator_of(at::kCPU).get_state());
  if (state.device.is_cuda()) {
    tensors.emplace_back("random/cuda", generator_of(state.device).get_state());
  }
  std::vector<run::Blob> blobs;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.detach().to(at::kCPU).contiguous();
    blobs.push_back({name, bytes_of(tensor)});
  }
  const auto& position = state.position;
  Json metadata{{"update", position.update},
                {"epoch", position.epoch},
                {"batch", position.batch},
                {"best", position.best_update < 0 ? Json() : Json(position.best)},
                {"best_update", position.best_update},
                {"stale", position.stale},
                {"evaluated", position.evaluated},
                {"best_test", position.best_test},
                {"repeated", position.repeated},
                {"seconds", position.seconds},
                {"waited", position.waited},
                {"evaluating", position.evaluating},
                {"saving", position.saving},
                {"optimiser_updates", state.optimiser.updates()},
                {"threads", at::get_num_threads()},
                {"device", state.device.str()},
                {"data", state.data}};
  store.save(position.update, blobs, metadata.dump());
}

void load_checkpoint(const run::Checkpoint& checkpoint, const TrainingState& state,
                     const std::function<void(const std::string&)>& warn) {
  const torch::NoGradGuard no_grad;
  check_data(checkpoint, state.data);
  const auto bad = [&](const std::string& what) {
    return bytes::FormatError(checkpoint.path().string() + ": " + what +
                              "; the configuration is not the one it was "
                              "written under");
  };
  for (auto& [name, tensor] : tensors_of(state)) {
    if (!checkpoint.contains(name) || checkpoint.blob(name).size() != tensor.nbytes()) {
      throw bad("no \"" + name + "\" of " + std::to_string(tensor.nbytes()) + " bytes");
    }
    const auto blob = checkpoint.blob(name);
    tensor.copy_(
        torch::from_blob(const_cast<std::byte*>(blob.data()), tensor.sizes(), torch::dtype(tensor.scalar_type())));
  }
  std::vector<std::pair<std::string, at::Device>> generators{{"random/cpu", at::kCPU}};
  if (state.device.is_cuda()) {
    generators.emplace_back("random/cuda", state.device);
  }
  for (const auto& [name, device] : generators) {
    if (!checkpoint.contains(name)) {
      warn("the checkpoint was written on another kind of device: random choices will differ from there on");
      continue;
    }
    const auto blob = checkpoint.blob(name);
    const auto size = static_cast<std::int64_t>(blob.size());
    generator_of(device).set_state(
        torch::from_blob(const_cast<std::byte*>(blob.data()), {size}, torch::dtype(at::kByte)).clone());
  }
  try {
    const auto metadata = Json::parse(checkpoint.metadata());
    auto& position = state.position;
    position.update = metadata.at("update").get<std::int64_t>();
    position.epoch = metadata.at("epoch").get<std::int64_t>();
    position.batch = metadata.at("batch").get<std::int64_t>();
    position.best_update = metadata.at("best_update").get<std::int64_t>();
    position.best = position.best_update < 0 ? position.best : metadata.at("best").get<double>();
    position.stale = metadata.at("stale").get<std::int64_t>();
    position.evaluated = metadata.at("evaluated").get<std::int64_t>();
    position.best_test = metadata.value("best_test", std::string());
    position.repeated = metadata.value("repeated", std::int64_t{0});
    position.seconds = metadata.at("seconds").get<double>();
    position.waited = metadata.at("waited").get<double>();
    position.evaluating = metadata.value("evaluating", 0.0);
    position.saving = metadata.value("saving", 0.0);
    state.optimiser.set_updates(metadata.at("optimiser_updates").get<std::int64_t>());
    const auto threads = metadata.at("threads").get<int>();
    if (threads != at::get_num_threads()) {
      warn("the checkpoint was written with " + bytes::counted(threads, "thread") + ", this run has " +
           std::to_string(at::get_num_threads()) +
           ": sums round differently, so the result will not be the same bit by bit (set threads=" +
           std::to_string(threads) + ")");
    }
  } catch (const nlohmann::json::exception& error) {
    throw bad(std::string("bad metadata: ") + error.what());
  }
}

}  // namespace dba::train
