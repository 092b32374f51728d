#include "train/finite_watch.h"

#include <torch/torch.h>

#include <string>

#include "dba/train/trainer.h"

namespace dba::train {
namespace {

[[noreturn]] void diverged(const std::string& what, std::int64_t update) {
  throw Diverged(what + " became NaN or infinite at update " + std::to_string(update) +
                 "; the last checkpoint is from before. Try a smaller optimiser.lr, a longer schedule.warmup or "
                 "train.clip=1");
}

}  // namespace

FiniteWatch::FiniteWatch(at::Device device) : first_bad_(torch::full({}, -1, torch::dtype(at::kLong).device(device))) {}

void FiniteWatch::check_losses() const {
  if (const auto bad = first_bad_.item<std::int64_t>(); bad >= 0) {
    diverged("the loss", bad);
  }
}

void FiniteWatch::check(const torch::nn::Module& module, std::int64_t update) const {
  const torch::NoGradGuard no_grad;
  check_losses();
  const auto norms = torch::stack(at::_foreach_norm(module.parameters()));
  if (!torch::isfinite(norms).all().item<bool>()) {
    diverged("a weight", update);
  }
}

}  // namespace dba::train
