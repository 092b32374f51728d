#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "dba/zoo.h"
#include "support/cases.h"

namespace dba::test {

/// A member with some of its options, small enough that short sequences meet every branch.
struct ZooCase {
  std::string member;
  zoo::OptionValues values;
  int64_t heads = 2;
  bool bias = true;
  int64_t d = 8;

  std::string name() const {
    std::string text = member;
    for (const auto& [option, value] : values)
      text += option == "max_length" ? "" : "_" + option + "_" + value;
    text += heads == 2 ? "" : "_heads" + std::to_string(heads);
    text += d == 8 ? "" : "_d" + std::to_string(d);
    return text + (bias ? "" : "_nobias");
  }
  /// All options, those not named with their defaults.
  zoo::OptionValues complete() const {
    zoo::OptionValues all = values;
    for (const auto& option : zoo::member(member).options)
      all.emplace(option.name, option.fallback);
    return all;
  }
  /// The layer in double with random weights; slots, where it has any, are its own.
  std::shared_ptr<torch::nn::Module> make(Random& random, double dropout = 0.0) const {
    auto layer = zoo::make(member, options().dropout(dropout), values);
    layer->to(at::kDouble);
    random.fill(*layer);
    return layer;
  }
  DBAttentionOptions options() const {
    return DBAttentionOptions(d, heads).d_p(5).d_in(4).z_update(ZUpdate::own).bias(bias);
  }
};

inline std::ostream& operator<<(std::ostream& stream, const ZooCase& one) {
  return stream << one.name();
}

/// The lengths that every batch mixes, an empty sequence among them.
inline const std::vector<int64_t> kZooLengths = {64, 1, 0, 100, 2, 257, 7, 63, 65};

/// Every member with its branches; DBA has tests of its own.
inline std::vector<ZooCase> zoo_cases() {
  const std::string longest = "257";
  return {
      {"softmax", {}},
      {"local", {{"block", "16"}}},
      {"local", {{"block", "1"}}, 1, false},
      {"linear", {}},
      {"linear", {}, 4, false},
      {"linear", {}, 2, true, 264},  // wider than the sequences are long
      {"linformer", {{"k", "6"}, {"max_length", longest}}},
      {"linformer", {{"k", "6"}, {"max_length", longest}, {"share", "heads"}}, 4},
      {"linformer", {{"k", "70"}, {"max_length", longest}, {"share", "heads"}}, 1},
      {"linformer", {{"k", "6"}, {"max_length", "300"}, {"share", "none"}}, 2, false},
      {"performer", {{"features", "10"}}},
      {"performer", {{"features", "10"}, {"kernel", "relu"}, {"seed", "3"}}, 1, false},
      {"cosformer", {}},
      {"fnet", {}},
      {"nystromformer", {{"landmarks", "8"}, {"conv", "5"}}},
      {"nystromformer", {{"landmarks", "300"}, {"conv", "0"}}},
      {"nystromformer", {{"landmarks", "16"}, {"conv", "0"}, {"iterations", "4"}}, 1, false},
      {"luna", {}},
      {"luna", {{"mask_slots", "false"}}, 4, false},
      {"flowformer", {}},
      {"flowformer", {}, 4, false, 264},
      {"longformer", {{"window", "10"}, {"globals", "3"}}},
      {"longformer", {{"window", "64"}, {"globals", "0"}}, 1, false},
      {"bigbird", {{"block", "8"}, {"random", "2"}}},
      {"bigbird", {{"block", "5"}, {"random", "3"}, {"window", "1"}, {"seed", "9"}}, 4, false},
      {"bigbird", {{"block", "64"}, {"random", "0"}, {"window", "3"}}},
      {"bigbird", {{"block", "8"}, {"random", "2"}, {"window", "99"}}},
      {"sparse", {{"summary", "2"}}},
      {"sparse", {{"block", "16"}, {"summary", "3"}}, 1, false},
      {"sparse", {{"block", "64"}, {"summary", "3"}}},
      {"sparse", {}},  // one map for all lengths
      {"sparse", {{"block", "100"}, {"summary", "40"}}, 1, false},
      {"pixelfly", {{"block", "8"}, {"butterfly", "4"}, {"rank", "3"}}},
      {"pixelfly", {{"block", "4"}, {"butterfly", "64"}, {"rank", "0"}}, 1, false},
      {"pixelfly", {{"block", "3"}, {"butterfly", "2"}, {"rank", "20"}}},
      {"synthesizer", {{"kind", "dense"}, {"max_length", longest}}},
      {"synthesizer", {{"kind", "factorised_dense"}, {"max_length", longest}}, 2, false},
      {"synthesizer", {{"kind", "random"}, {"max_length", "300"}}},
      {"synthesizer", {{"kind", "factorised_random"}, {"max_length", longest}, {"rank", "3"}}},
      {"synthesizer", {{"kind", "mixed"}, {"max_length", longest}}, 4},
      {"yoso", {{"tau", "3"}, {"hashes", "5"}}},
      {"yoso", {{"tau", "2"}, {"hashes", "1"}, {"seed", "4"}}, 1, false},
      {"yoso", {{"kind", "expectation"}, {"tau", "6"}}},
      {"reformer", {{"chunk", "8"}, {"buckets", "6"}, {"rounds", "3"}}},
      {"reformer", {{"chunk", "16"}, {"buckets", "2"}, {"rounds", "1"}, {"seed", "2"}}, 1, false},
      {"sinkhorn", {{"block", "8"}, {"max_length", longest}}},
      {"sinkhorn", {{"block", "64"}, {"iterations", "2"}, {"max_length", "300"}, {"scores", "relu"}}, 1, false},
      {"scatterbrain", {{"window", "12"}, {"features", "10"}}},
      {"scatterbrain", {{"window", "64"}, {"features", "5"}, {"seed", "2"}}, 1, false},
  };
}

}  // namespace dba::test
