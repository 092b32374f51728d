#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "bytes/scratch_folder.h"
#include "dba/data/cache.h"
#include "dba/train/model.h"

namespace dba::train::testing_sets {

/// Twelve examples of two classes in a cache file, with lengths from 1 to 40, four of them the same.
class SmallSet {
 public:
  explicit SmallSet(data::Kind kind, const data::TokeniserOptions& tokeniser = {}) : set_(build(kind, tokeniser)) {}

  const data::CachedSet& set() const {
    return set_;
  }
  /// The first one has many lengths, the last one a single one.
  const std::vector<std::vector<std::size_t>>& batches() const {
    return batches_;
  }
  ModelPlan plan(double dropout) const {
    ModelPlan plan;
    auto& model = plan.config.model;
    model.d = 16;
    model.heads = 2;
    model.d_ffn = 24;
    model.d_p = 4;
    model.d_in = 8;
    model.dropout = model.attention_dropout = model.activation_dropout = dropout;
    plan.config.train.clip = 1.0;
    plan.encoding = set_.encoding();
    plan.longest = static_cast<std::int64_t>(set_.statistics().longest);
    return plan;
  }

 private:
  data::CachedSet build(data::Kind kind, const data::TokeniserOptions& tokeniser) const {
    const int lengths[] = {5, 40, 1, 17, 9, 9, 23, 9, 2, 31, 9, 12};
    std::ofstream file(folder_ / "set.jsonl");
    for (int i = 0; i < 12; ++i) {
      const auto text = [&](int length) {
        std::string letters;
        for (int k = 0; k < length; ++k) {
          letters += static_cast<char>('a' + (7 * i + 3 * k + k * k) % 26);
        }
        return '"' + letters + '"';
      };
      if (kind == data::Kind::series) {
        file << "{\"series\": [";
        for (int k = 0; k < lengths[i]; ++k) {
          file << (k > 0 ? ", " : "") << "[" << 0.25 * (i - k) << ", " << (3 * k + i) % 7 << "]";
        }
        file << "]";
      } else if (kind == data::Kind::pairs) {
        file << "{\"text1\": " << text(lengths[i]) << ", \"text2\": " << text(lengths[11 - i]);
      } else {
        file << "{\"text\": " << text(lengths[i]);
      }
      file << ", \"label\": \"" << (i % 3 == 0 ? "yes" : "no") << "\"}\n";
    }
    file.close();
    data::CacheSource source;
    source.file = folder_ / "set.jsonl";
    source.tokeniser = tokeniser;
    return std::move(data::open_or_build(source, folder_ / "set.cache").set);
  }

  bytes::ScratchFolder folder_;
  data::CachedSet set_;
  std::vector<std::vector<std::size_t>> batches_{{1, 0, 6}, {3, 2, 8, 11, 9}, {4, 5, 7, 10}};
};

}  // namespace dba::train::testing_sets
