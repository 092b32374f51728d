#pragma once

#include "plan/choose.h"

namespace dba::test {

/// Two sequences of the Text task's length; the other sizes as Shape has them.
inline plan::Shape text_shape() {
  plan::Shape shape;
  shape.longest = 4096;
  shape.batch = 2;
  shape.tokens = 8192;
  return shape;
}

inline plan::Plan plan_of(const plan::Shape& shape) {
  return plan::make_plan(shape, plan::default_constants(shape.device, shape.dtype));
}

}  // namespace dba::test
