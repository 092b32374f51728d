#include "ops/cpu/kept_steps.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

#include "ops/cpu/unit_size.h"

namespace dba::ops::cpu {
namespace {

/// The memory of a tensor and the steps that go with it.
struct Carrier {
  at::DataPtr entries, steps;
  StepsOrigin origin;
};

void release_carrier(void* carrier) {
  delete static_cast<Carrier*>(carrier);
}

}  // namespace

StepsOrigin::StepsOrigin(const AttentionArguments& arguments, const WorkPlan& plan)
    : numbers{static_cast<int64_t>(instruction_set()), arguments.heads, arguments.linear, arguments.dropout.p > 0} {
  const auto append = [&](const auto& more) { numbers.insert(numbers.end(), more.begin(), more.end()); };
  append(plan.begin);
  append(plan.end);
  const auto& rows = arguments.rows;
  const auto& w = arguments.weights;
  for (const auto* tensor :
       {&arguments.x, &rows.each, &rows.shared, &arguments.restore_rows, &arguments.restore_bias, &w.query_weight,
        &w.query_bias, &w.key_weight, &w.key_bias, &w.value_weight, &w.value_bias}) {
    numbers.push_back(tensor->defined() ? 1 : 0);
    if (!tensor->defined()) {
      continue;
    }
    const auto& version = tensor->unsafeGetTensorImpl()->version_counter();
    known = known && version.enabled();
    numbers.push_back(known ? static_cast<int64_t>(version.current_version()) : 0);
    numbers.push_back(reinterpret_cast<int64_t>(tensor->const_data_ptr()));
    numbers.push_back(static_cast<int64_t>(tensor->scalar_type()));
    append(tensor->sizes());
    append(tensor->strides());
  }
}

at::Tensor empty_with_steps(at::IntArrayRef sizes, at::ScalarType type, int64_t bytes, const StepsOrigin& origin) {
  if (bytes > kMostKeptBytes || !origin.known) {
    return at::empty(sizes, type);
  }
  auto* const allocator = c10::GetCPUAllocator();
  const auto own_bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  auto carrier = std::make_unique<Carrier>(
      Carrier{allocator->allocate(own_bytes), allocator->allocate(static_cast<size_t>(bytes)), origin});
  void* const entries = carrier->entries.get();
  c10::Storage storage(c10::Storage::use_byte_size_t(), own_bytes,
                       at::DataPtr(entries, carrier.release(), &release_carrier, at::kCPU), /*allocator=*/nullptr,
                       /*resizable=*/false);
  auto tensor = at::empty({0}, type);
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

void* steps_with(const at::Tensor& tensor, const StepsOrigin& origin) {
  if (!origin.known || !tensor.has_storage()) {
    return nullptr;
  }
  const auto* const carrier = tensor.storage().data_ptr().cast_context<Carrier>(&release_carrier);
  return carrier != nullptr && carrier->origin == origin ? carrier->steps.get() : nullptr;
}

}  // namespace dba::ops::cpu
