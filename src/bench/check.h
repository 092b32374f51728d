#pragma once

#include <limits>
#include <string>

#include "bench/work.h"

namespace dba::bench {

/// Whether a method's numbers are right, and by how much.
struct Verdict {
  bool right = false;
  double output_error = 0.0;  ///< relative, by norm
  /// The worst parameter's or the input's; NaN where only values were asked for.
  double gradient_error = std::numeric_limits<double>::quiet_NaN();
  int64_t length = 0;  ///< tokens of a sequence in the comparison; less than the case's where the truth costs too much
  std::string reason;  ///< what is wrong
};

/// Compares the work's output and gradients with float64 by the plainest path, for the first and the last sequence of
/// the batch (the whole batch is computed; sequences do not depend on one another). The error may be four times that
/// of plain PyTorch in the same precision, and never as large as a wrong formula makes it; just below that bound it may
/// always be where tokens are hashed, and for the gradients of a classifier in half precision. A member of the zoo has
/// one path, which is measured by itself on those sequences alone: for it the comparison finds NaN and sequences that
/// depend on one another; formulas are its tests' affair. Dropout is off. `most`: tokens of a sequence in the
/// comparison, at most; −1: as many as can be afforded.
Verdict check(Work& work, const Case& one, bool gradients, int64_t most = -1);

}  // namespace dba::bench
