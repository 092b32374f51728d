#pragma once

#include <string>
#include <vector>

#include "plan/shape.h"

namespace dba::plan {

/// Why no fused kernel serves the shape, so that the two passes take the reference; empty where one does. The same
/// limits as the kernels' own, which have the last word at the call.
std::string fused_obstacle(const Shape& shape);

/// Why, on a GPU of compute capability 9.0, the general kernels serve instead of those for Hopper; empty where the
/// latter do.
std::vector<std::string> hopper_obstacles(const Shape& shape);
/// Whether there are none.
bool in_hopper_range(const Shape& shape);

/// Why, with fused passes on a GPU, `fold` takes the reference in forward or backward; empty where it does not.
std::vector<std::string> fold_obstacles(const Shape& shape);

/// Why, with fused passes on a GPU, `core` takes the reference, be it in backward alone; empty where it does not. Of
/// shared memory this is said of thread blocks with 227 KB, the most there is; where they have less, it begins at fewer
/// slots.
std::string core_obstacle(const Shape& shape);

}  // namespace dba::plan
