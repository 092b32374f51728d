#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dba/data/example.h"
#include "dba/data/labels.h"
#include "dba/data/reader.h"
#include "dba/data/tokeniser.h"

namespace dba::data {

/// An example in numbers.
struct Encoded {
  std::vector<std::int32_t> first;   ///< symbols of the whole sequence, what is left out included
  std::vector<std::int32_t> second;  ///< of a pair
  std::vector<float> values;         ///< of a series, steps × channels
  std::int32_t label = -1;           ///< −1: none
  bool cut = false;                  ///< something was too long
};

/// How the examples of a data set become numbers: fixed by the training part, needed for every other part and for
/// prediction.
struct Encoding {
  Kind kind = Kind::tokens;
  std::size_t channels = 0;  ///< of series
  Tokeniser tokeniser;       ///< of series, only max_length and too_long of its options
  LabelSet labels;

  /// Throws bytes::FormatError, which begins with `place`, for an example of another kind or number of channels, an
  /// unseen label and whatever the tokeniser refuses.
  void encode(const Example& example, const std::string& place, Encoded& encoded) const;

  /// One JSON object: "kind", "channels", "tokeniser", "labels".
  std::string to_json() const;
  /// Throws bytes::FormatError, which names the source.
  static Encoding from_json(std::string_view text, const std::string& source);
};

/// Reads the whole training part once. Throws bytes::FormatError for bad records, for fewer than two classes, for
/// series without any value, and where the scheme does not fit the content (bytes of integers).
Encoding learn_encoding(Reader& training, const TokeniserOptions& options);

}  // namespace dba::data
