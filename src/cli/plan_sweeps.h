#pragma once

#include "cli/plan_arguments.h"

/// What `dba plan` measures over many shapes, with a bar that shows how far it is.
namespace dba::cli {

/// --calibrate: fits the constants of a device and type and writes them to their file.
void calibrate_plan(const PlanArguments& arguments);
/// --grid: how far the choice is from the best.
void measure_plan_grid(const PlanArguments& arguments);

}  // namespace dba::cli
