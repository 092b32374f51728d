#include "plan/fused_range.h"
#include "dba/backend.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <iterator>

#include "ops/fused.h"

namespace dba::plan {
namespace {

/// A limit of kernels: where `broken` says yes, they do not serve, for the reason given.
struct Limit {
  bool (*broken)(const Shape& shape);
  std::string (*reason)(const Shape& shape);
};

std::string number(int64_t value) {
  return std::to_string(value);
}

bool half(const Shape& s) {
  return s.autocast || s.dtype == at::kHalf || s.dtype == at::kBFloat16;
}

int64_t slots(const Shape& s) {
  return s.heads * s.d_p;
}

const Limit kCpu[] = {
    {[](const Shape& s) { return !half(s) && s.dtype != at::kFloat && s.dtype != at::kDouble; },
     [](const Shape& s) {
       return std::string("the CPU kernels take float32, float64, bfloat16 and float16, not ") + c10::toString(s.dtype);
     }},
};

const Limit kCuda[] = {
    {[](const Shape& s) { return s.dtype == at::kDouble && !s.autocast; },
     [](const Shape&) { return std::string("the CUDA kernels take float16, bfloat16 and float32, not float64"); }},
    {[](const Shape& s) { return s.tokens == 0 || s.batch == 0; },
     [](const Shape&) { return std::string("there are no tokens"); }},
    {[](const Shape& s) { return s.d < 8 || s.d > 1024; },
     [](const Shape& s) { return "the CUDA kernels take widths d from 8 to 1024, not " + number(s.d); }},
    {[](const Shape& s) { return s.heads > 32 || s.d_p > 256; },
     [](const Shape& s) {
       return "the CUDA kernels take up to 32 heads of up to 256 slots, not " + number(s.heads) + " of " +
              number(s.d_p);
     }},
};

/// Slots over all heads whose rows and M fit beside two tiles of tokens in the shared memory of hopper_restore.cu.
int64_t most_restored_slots(const Shape& s) {
  return s.d > 128 ? 128 : s.d > 64 ? 320 : 768;
}

const Limit kHopper[] = {
    {[](const Shape& s) { return !half(s); },
     [](const Shape&) { return std::string("the Hopper kernels take float16 and bfloat16"); }},
    {[](const Shape& s) { return s.d > 256 || s.d % 8 != 0; },
     [](const Shape& s) {
       return "the Hopper kernels take widths up to 256 that are multiples of 8, not " + number(s.d);
     }},
    {[](const Shape& s) { return s.normalise == Normalise::softmax && (s.d_p > 64 || (s.d_p & (s.d_p - 1)) != 0); },
     [](const Shape& s) {
       return "in restore the Hopper kernels take a d_p that is a power of two up to 64, not " + number(s.d_p);
     }},
    {[](const Shape& s) { return slots(s) > most_restored_slots(s); },
     [](const Shape& s) {
       return "in restore the Hopper kernels take up to " + number(most_restored_slots(s)) +
              " slots over all heads at width " + number(s.d) + ", not " + number(slots(s));
     }},
    {[](const Shape& s) { return s.training && slots(s) % 8 != 0; },
     [](const Shape& s) {
       return "in backward the Hopper kernels take multiples of 8 slots over all heads, not " + number(slots(s));
     }},
    {[](const Shape& s) {
       return s.training && s.form == Form::paper && s.slots_per_sequence && 2 * slots(s) % 64 != 0;
     },
     [](const Shape& s) {
       return "in backward the Hopper kernels take 64, 128, … rows of each sequence before shared ones, not " +
              number(2 * slots(s));
     }},
    {[](const Shape& s) { return s.training && s.form == Form::paper && s.normalise == Normalise::linear; },
     [](const Shape&) {
       return std::string("in backward the Hopper kernels leave the biases of linear rows to the general ones");
     }},
};

/// What the sizes of `fold` and `core` must stay below: the largest int over 64 (ops/cuda/fold.cc, core_call.cc).
constexpr int64_t kSmallSizes = int64_t{1} << 25;

/// Numbers in what is folded: Z, or in form `released` its projection.
int64_t folded_numbers(const Shape& s) {
  return s.batch * s.d_p * (s.form == Form::paper ? s.d : s.heads * s.e);
}

const Limit kFold[] = {
    {[](const Shape& s) { return s.slots_per_sequence && s.batch > 65535; },
     [](const Shape& s) {
       return "fold takes the reference in forward: with a Z per sequence its kernels take up to 65535 sequences, "
              "not " +
              number(s.batch);
     }},
    {[](const Shape& s) { return s.training && s.slots_per_sequence && folded_numbers(s) >= kSmallSizes; },
     [](const Shape& s) {
       return "fold takes the reference in backward: its kernels take less than 2^25 numbers of Z over all sequences, "
              "not " +
              number(folded_numbers(s));
     }},
};

template <std::size_t kCount>
std::vector<std::string> reasons_of(const Limit (&limits)[kCount], const Shape& shape) {
  std::vector<std::string> reasons;
  for (const auto& limit : limits) {
    if (limit.broken(shape)) {
      reasons.push_back(limit.reason(shape));
    }
  }
  return reasons;
}

bool cuda_kernels_loaded() {
  static const bool loaded = [] {
    const auto op = c10::Dispatcher::singleton().findSchema({"dba::compress", ""});
    return op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  }();
  return loaded;
}

}  // namespace

std::string fused_obstacle(const Shape& shape) {
  if (shape.device == at::kCPU) {
    for (const auto& limit : kCpu) {
      if (limit.broken(shape)) {
        return limit.reason(shape);
      }
    }
    return {};
  }
  if (shape.device != at::kCUDA) {
    return "there are fused kernels for CPU and CUDA alone";
  }
  for (const auto& limit : kCuda) {
    if (limit.broken(shape)) {
      return limit.reason(shape);
    }
  }
  if (!cuda_kernels_loaded()) {
    return "the library of CUDA kernels, libdba_cuda, is not loaded";
  }
  if (const auto obstacle = ops::gpu_obstacle(); !obstacle.empty()) {
    return obstacle;
  }
  return cuda_kernels() == CudaKernels::off && backend() == Backend::automatic
             ? "fused CUDA kernels are off (DBA_CUDA_KERNELS=auto takes them)"
             : std::string();
}

std::vector<std::string> hopper_obstacles(const Shape& shape) {
  return reasons_of(kHopper, shape);
}

bool in_hopper_range(const Shape& shape) {
  return std::none_of(std::begin(kHopper), std::end(kHopper), [&](const Limit& limit) { return limit.broken(shape); });
}

std::vector<std::string> fold_obstacles(const Shape& shape) {
  return shape.device == at::kCUDA ? reasons_of(kFold, shape) : std::vector<std::string>();
}

std::string core_obstacle(const Shape& shape) {
  if (shape.device != at::kCUDA) {
    return {};
  }
  if (const int64_t rows = shape.batch * std::max(shape.d_p, shape.heads); rows >= kSmallSizes) {
    return "core takes the reference: its kernels take less than 2^25 slots and heads over all sequences, not " +
           number(rows);
  }
  constexpr int64_t kSharedBytes = 227 * 1024;
  // As core_attend_backward.cuh lays it out: P' of a head and its gradient and, behind R, q, k and their gradients.
  const int64_t behind_width = shape.form == Form::paper ? 4 * ((shape.e + 3) / 4 * 4 + 4) : 0;
  const int64_t bytes = 4 * shape.d_p * (2 * (shape.d_p | 1) + behind_width);
  if (!shape.training || bytes <= kSharedBytes) {
    return {};
  }
  return "core takes the reference in backward: " + number(shape.d_p) + " slots need " + number(bytes / 1024) +
         " KB of shared memory, and no GPU gives a thread block more than 227 KB";
}

}  // namespace dba::plan
