#include "ops/kept_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <mutex>
#include <set>
#include <utility>

namespace dba::ops {
namespace {

constexpr size_t kMostBytesOfOne = size_t{16} << 20;
constexpr size_t kMostBytes = size_t{64} << 20;
constexpr size_t kMostEntries = 256;  // that a search goes through: about thirty shapes

GpuRecording recording_of_gpu = nullptr;

/// Where and for whom: tensors of one stream may not be there yet for another.
struct Place {
  at::ScalarType type;
  at::Device device;
  int64_t stream;

  bool operator==(const Place&) const = default;
};

struct Entry {
  KeptKey key;
  Place place;
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> versions;  ///< of the tensors when they were made: what somebody wrote into is not given again
  size_t bytes;

  bool is_as_made() const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]._version() != versions[i]) {
        return false;
      }
    }
    return true;
  }
};

/// The latest in front.
struct Kept {
  std::mutex mutex;
  std::list<Entry> entries;
  size_t bytes = 0;

  std::list<Entry>::iterator find(const KeptKey& key, const Place& place) {
    return std::find_if(entries.begin(), entries.end(),
                        [&](const Entry& entry) { return entry.place == place && entry.key == key; });
  }
  void erase(std::list<Entry>::iterator entry) {
    bytes -= entry->bytes;
    entries.erase(entry);
  }
};

/// Lives as long as the process: tensors of a GPU cannot be let go when its driver has gone.
Kept& kept() {
  static auto* const all = new Kept;
  return *all;
}

/// Nothing where no tensor may outlast the call.
std::optional<Place> place_of(const at::TensorOptions& options) {
  const bool watched = c10::impl::TorchDispatchModeTLS::any_modes_set() ||
                       c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  auto device = options.device();
  if (watched || (!device.is_cpu() && !device.is_cuda())) {
    return std::nullopt;
  }
  const auto type = c10::typeMetaToScalarType(options.dtype());
  if (device.is_cpu()) {
    return Place{type, device, 0};
  }
  const c10::impl::VirtualGuardImpl gpu(device.type());
  device = device.has_index() ? device : gpu.getDevice();
  if (recording_of_gpu == nullptr || recording_of_gpu(device.index())) {
    return std::nullopt;
  }
  return Place{type, device, gpu.getStream(device).id()};
}

/// As ordinary tensors, which any later call may use: neither autocast nor inference mode has a say.
std::vector<at::Tensor> made(c10::function_ref<std::vector<at::Tensor>()> make) {
  const c10::impl::ExcludeDispatchKeyGuard as_given(c10::autocast_dispatch_keyset);
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  auto tensors = make();
  for (auto& tensor : tensors) {
    tensor = tensor.is_inference() ? tensor.clone() : tensor;
  }
  return tensors;
}

/// Views of one tensor share its memory.
size_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::set<const void*> counted;
  size_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += counted.insert(tensor.storage().unsafeGetStorageImpl()).second ? tensor.storage().nbytes() : 0;
  }
  return bytes;
}

TORCH_LIBRARY_FRAGMENT(dba, m) {
  m.def("forget_kept_tensors() -> ()", forget_kept_tensors);
}

}  // namespace

std::optional<KeptKey> more_of(const std::optional<KeptKey>& key, const std::string& part,
                               const std::vector<int64_t>& more) {
  if (!key) {
    return std::nullopt;
  }
  KeptKey larger{key->name + "." + part, key->numbers};
  larger.numbers.insert(larger.numbers.end(), more.begin(), more.end());
  larger.numbers.push_back(std::ssize(more));  // where these begin
  return larger;
}

std::vector<at::Tensor> kept_tensors(const std::optional<KeptKey>& key, const at::TensorOptions& options,
                                     c10::function_ref<std::vector<at::Tensor>()> make) {
  const auto place = key ? place_of(options) : std::nullopt;
  if (!place) {
    return make();
  }
  auto& all = kept();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.find(*key, *place);
    if (found != all.entries.end() && found->is_as_made()) {
      all.entries.splice(all.entries.begin(), all.entries, found);
      return found->tensors;
    }
  }
  Entry entry{*key, *place, made(make), {}, 0};
  entry.bytes = bytes_of(entry.tensors);
  for (const auto& tensor : entry.tensors) {
    entry.versions.push_back(tensor._version());
  }
  auto tensors = entry.tensors;
  if (entry.bytes > kMostBytesOfOne) {
    return tensors;
  }
  const std::lock_guard lock(all.mutex);
  if (const auto before = all.find(*key, *place); before != all.entries.end()) {
    all.erase(before);
  }
  all.bytes += entry.bytes;
  all.entries.push_front(std::move(entry));
  while (all.bytes > kMostBytes || all.entries.size() > kMostEntries) {
    all.erase(std::prev(all.entries.end()));
  }
  return tensors;
}

at::Tensor kept_tensor(const std::optional<KeptKey>& key, const at::TensorOptions& options,
                       c10::function_ref<at::Tensor()> make) {
  return kept_tensors(key, options, [&] { return std::vector{make()}; }).front();
}

void forget_kept_tensors() {
  auto& all = kept();
  const std::lock_guard lock(all.mutex);
  all.entries.clear();
  all.bytes = 0;
}

GpuRecording set_gpu_recording(GpuRecording recording) {
  return std::exchange(recording_of_gpu, recording);
}

}  // namespace dba::ops
