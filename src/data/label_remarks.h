#pragma once

#include "dba/data/describe.h"

namespace dba::data {

/// Label → examples.
using Classes = std::map<std::string, std::uint64_t>;

/// A sentence about the first two labels that differ in case or in spaces around them alone; empty: there are none.
std::string written_in_two_ways(const Classes& classes);

/// A sentence about classes that a training file lists without an example of them; empty: there are none.
std::string without_examples(const std::vector<std::string>& classes);

/// The listed classes that no example has.
std::vector<std::string> classes_without_examples(const std::vector<std::string>& listed, const Classes& classes);

/// Adds remarks on labels that training or evaluation would refuse, on those that look like one label written in two
/// ways, and on classes that the training file lists without an example.
void remark_on_labels(Description& description);

}  // namespace dba::data
