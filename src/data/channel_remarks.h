#pragma once

#include "dba/data/describe.h"

namespace dba::data {

/// Adds remarks on series of another number of channels than the training part's, and on files without any
/// value, which training would refuse.
void remark_on_channels(Description& description);

}  // namespace dba::data
