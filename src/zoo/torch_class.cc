#include <torch/custom_class.h>
#include <torch/torch.h>

#include <mutex>

#include "dba/zoo.h"
#include "zoo/report.h"

namespace dba::zoo {
namespace {

using at::Tensor;

/// Where the sequences of a call lie: begin (B), end (B), and of dba::Sequences rows, padded_length, max_length and
/// consecutive.
using Bounds = std::tuple<Tensor, Tensor, std::vector<int64_t>>;

Sequences sequences_of(const Bounds& bounds) {
  const auto& [begin, end, numbers] = bounds;
  return {begin, end, numbers.at(0), numbers.at(1), numbers.at(2), numbers.at(3) != 0};
}

/// The layer of a member for callers that keep its tensors themselves: `torch.classes.dba.ZooLayer`. It computes with
/// the tensors of each call, so that whatever its owner does with them (moves, casts, replaces, differentiates) holds.
class Layer : public torch::CustomClassHolder {
 public:
  /// values: "window=128, globals=2"; z_update and hands_on_z for members that carry slots.
  Layer(const std::string& name, int64_t d, int64_t heads, double dropout, bool bias, int64_t d_p, double z_dropout,
        const std::string& z_update, bool hands_on_z, const std::string& values) {
    const auto options = DBAttentionOptions(d, heads)
                             .dropout(dropout)
                             .bias(bias)
                             .d_p(d_p)
                             .z_dropout(z_dropout)
                             .z_update(parse_z_update(z_update))
                             .hands_on_z(hands_on_z);
    layer_ = std::dynamic_pointer_cast<ZooAttention>(make(name, options, parse_values(values)));
    TORCH_CHECK(layer_, "dba::zoo: ", name, " is a module of its own in Python, dba.DBAttention");
    fields_ = layer_->tensor_fields();
    const auto add = [&](const auto& tensors, bool trained) {
      for (const auto& item : tensors) {
        initial_.emplace_back(item.key(), item.value().detach(), trained);
        shapes_.push_back(item.value().sizes().vec());
        item.value().set_data(item.value().new_empty({0}));  // the memory is the caller's from now on
      }
    };
    add(layer_->named_parameters(), true);
    add(layer_->named_buffers(), false);
    TORCH_INTERNAL_ASSERT(fields_.size() == initial_.size(), name, " computes with tensors that it does not name");
    exchange(std::vector<Tensor>(fields_.size()));
  }

  /// Name, first value and whether it is a parameter, in the order in which a call hands them in. Once.
  std::vector<std::tuple<std::string, Tensor, bool>> take_tensors() {
    return std::move(initial_);
  }

  bool takes_slots() const {
    return layer_->takes_slots();
  }

  /// The output and, where the layer hands slots on, the next layer's. Without bounds x is a batch without padding.
  std::tuple<Tensor, std::optional<Tensor>> attend(const std::vector<Tensor>& tensors, bool training, const Tensor& x,
                                                   const std::optional<Bounds>& bounds,
                                                   const std::optional<Tensor>& z) {
    const Call call(*this, tensors, training);
    const auto sequences = bounds ? std::optional(sequences_of(*bounds)) : std::nullopt;
    const auto output = layer_->forward(x, sequences, z.value_or(Tensor()), /*need_weights=*/false);
    return {output.y, output.z.defined() ? std::optional(output.z) : std::nullopt};
  }

  Tensor attend_to(const std::vector<Tensor>& tensors, bool training, const Tensor& x, const Bounds& bounds,
                   const Tensor& memory, const Bounds& memory_bounds) {
    const Call call(*this, tensors, training);
    return layer_->attend_to(x, sequences_of(bounds), memory, sequences_of(memory_bounds)).y;
  }

 private:
  /// While it lives, the layer has the caller's tensors, and is this caller's alone.
  class Call {
   public:
    Call(Layer& owner, const std::vector<Tensor>& tensors, bool training) : lock_(owner.mutex_), owner_(owner) {
      TORCH_CHECK(tensors.size() == owner.fields_.size(), "dba::zoo: a call needs the ", owner.fields_.size(),
                  " tensors of the layer, got ", tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        // Python finds these words, and says the name of the tensor.
        TORCH_CHECK(tensors[i].sizes() == owner_.shapes_[i], "dba::zoo: tensor ", i, " of the layer must be of shape ",
                    at::IntArrayRef(owner_.shapes_[i]), ", got ", tensors[i].sizes());
      }
      owner_.exchange(tensors);
      if (owner_.layer_->is_training() != training) {
        owner_.layer_->train(training);
      }
    }
    ~Call() {
      owner_.exchange(std::vector<Tensor>(owner_.fields_.size()));
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    const std::lock_guard<std::mutex> lock_;
    Layer& owner_;
  };

  void exchange(const std::vector<Tensor>& tensors) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      *fields_[i] = tensors[i];
    }
  }

  std::shared_ptr<ZooAttention> layer_;
  std::vector<Tensor*> fields_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::tuple<std::string, Tensor, bool>> initial_;
  std::mutex mutex_;
};

TORCH_LIBRARY_FRAGMENT(dba, m) {
  m.def("zoo_members() -> str", [] { return json(); });
  m.class_<Layer>("ZooLayer")
      .def(torch::init<std::string, int64_t, int64_t, double, bool, int64_t, double, std::string, bool, std::string>())
      .def("take_tensors", &Layer::take_tensors)
      .def("takes_slots", &Layer::takes_slots)
      .def("attend", &Layer::attend)
      .def("attend_to", &Layer::attend_to);
}

}  // namespace
}  // namespace dba::zoo
