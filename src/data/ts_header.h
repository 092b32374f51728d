#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "dba/data/reader.h"
#include "line_reader.h"

namespace dba::data {

/// What the lines before @data of a `.ts` file promise of its rows.
struct TsHeader {
  std::size_t dimensions = 0;        ///< channels; 0: not stated
  bool univariate = false;           ///< @univariate true, so that there is one
  bool equal_length = false;         ///< promised; false: not promised
  std::size_t series_length = 0;     ///< of every series; 0: not stated, or lengths may differ
  bool labelled = false;             ///< the last field of a row is its label
  bool label_denied = false;         ///< @classLabel false
  std::vector<std::string> classes;  ///< as @classLabel lists them; empty: any label

  /// The class that a label of a row means, spelled as the header does: the same text, else the same but for upper and
  /// lower case. Null where there is none.
  const std::string* find_class(std::string_view label) const;
};

/// Reads up to and with the line @data. Tags are taken in upper and lower case; blank lines and those that begin with #
/// or % are passed over, and tags that say nothing of the rows (@problemName, @missing, unknown ones) as well. Throws
/// bytes::FormatError, with file, line and column, for tags that contradict each other, time stamps and, unless labels
/// are ignored, targets of a regression.
TsHeader read_ts_header(LineReader& lines, const std::string& file, LabelUse labels);

/// Whether a line, blanks at its ends removed, is empty or a comment.
bool says_nothing(std::string_view line);

}  // namespace dba::data
