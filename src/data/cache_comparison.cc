#include "cache_comparison.h"

#include <algorithm>

#include "dba/bytes/errors.h"
#include "dba/data/cache.h"
#include "dba/data/formats.h"

namespace dba::data {

std::string first_other_example(const std::filesystem::path& cache, const std::filesystem::path& source) {
  const CachedSet set = CachedSet::open(cache);
  ReaderOptions options;
  options.labels = LabelUse::optional;
  const auto alike = [](const SymbolSpan& kept, const std::vector<std::int32_t>& read) {
    return std::equal(kept.begin(), kept.end(), read.begin(), read.end());
  };
  try {
    const auto reader = make_reader(source, options);
    Example example;
    Encoded read;
    std::size_t i = 0;
    for (; reader->next(example); ++i) {
      set.encoding().encode(example, reader->place(), read);
      if (i == set.size())
        return reader->place();
      const CachedSet::View kept = set.example(i);
      if (kept.label != read.label || !alike(kept.first, read.first) || !alike(kept.second, read.second) ||
          !std::ranges::equal(kept.values, read.values))
        return reader->place();
    }
    return i < set.size() ? "example " + std::to_string(i + 1) + " of the cache" : "";
  } catch (const bytes::FormatError& error) {
    return error.what();
  }
}

}  // namespace dba::data
