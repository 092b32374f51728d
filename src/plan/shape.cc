#include "plan/shape.h"

#include <ATen/Parallel.h>

namespace dba::plan {

int64_t Shape::length() const {
  return longest >= 0 ? longest : batch > 0 ? (tokens + batch - 1) / batch : 0;
}

std::array<Shape, 2> measured_shapes(const MeasuredSizes& sizes, at::DeviceType device, at::ScalarType dtype) {
  Shape shape;
  shape.longest = sizes.length;
  shape.batch = sizes.batch * (device == at::kCPU ? 1 : 16);
  shape.tokens = shape.longest * shape.batch;
  shape.d = sizes.d;
  shape.heads = sizes.heads;
  shape.d_p = sizes.d_p;
  shape.e = (sizes.d_in + sizes.heads - 1) / sizes.heads;
  shape.form = sizes.form;
  shape.dtype = dtype;
  shape.device = device;
  shape.threads = at::get_num_threads();
  Shape training = shape;
  training.training = true;
  return {shape, training};
}

std::string to_string(Candidate candidate) {
  switch (candidate) {
    case Candidate::fused:
      return "fused";
    case Candidate::projected:
      return "projected";
    case Candidate::reference:
      return "reference";
    case Candidate::direct:
      return "direct";
  }
  return "?";
}

Order order_of(Candidate candidate) {
  switch (candidate) {
    case Candidate::projected:
      return Order::projected;
    case Candidate::direct:
      return Order::direct;
    default:
      return Order::two_pass;
  }
}

}  // namespace dba::plan
