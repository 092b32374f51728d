#include "plan/shape.h"

namespace dba::plan {

int64_t Shape::length() const {
  return longest >= 0 ? longest : batch > 0 ? (tokens + batch - 1) / batch : 0;
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
