#pragma once

#include "dba/data/describe.h"

namespace dba::data {

/// Label → examples.
using Classes = std::map<std::string, std::uint64_t>;

/// A sentence about the first two labels that differ in case or in spaces around them alone; empty: there are none.
std::string written_in_two_ways(const Classes& classes);

/// Adds remarks on labels that training or evaluation would refuse, and on those that look like one label written in
/// two ways.
void remark_on_labels(Description& description);

}  // namespace dba::data
