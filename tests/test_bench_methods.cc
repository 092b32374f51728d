#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/split_methods.h"
#include "dba/zoo.h"
#include "support/bench_figures.h"

namespace dba::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BenchMethods, NamesAndVariantsAreUnderstood) {
  const auto method = parse_method("dba:released:linear:direct:reference");
  EXPECT_EQ(method.attention, "dba");
  EXPECT_EQ(method.form, Form::released);
  EXPECT_EQ(method.normalise, Normalise::linear);
  EXPECT_EQ(method.order, Order::direct);
  EXPECT_EQ(method.backend, Backend::reference);
  EXPECT_EQ(parse_method("softmax:cudnn").sdpa, Sdpa::cudnn);
  EXPECT_EQ(parse_method("dba").backend, Backend::automatic);
  EXPECT_EQ(truth_of(method).order, Order::two_pass);
  EXPECT_EQ(truth_of(parse_method("dba:fused")).backend, Backend::reference);
}

TEST(BenchMethods, TheYardstickIsPlainWhereTheMethodHasAnotherPath) {
  EXPECT_EQ(plain_of(parse_method("dba")).backend, Backend::reference);
  EXPECT_EQ(plain_of(parse_method("softmax:flash")).sdpa, Sdpa::math);
  EXPECT_EQ(plain_of(parse_method("luna")).backend, Backend::reference);
  EXPECT_EQ(plain_of(parse_method("longformer")).sdpa, Sdpa::any);  // its one path is on PyTorch's
  EXPECT_EQ(truth_of(parse_method("longformer")).sdpa, Sdpa::math);
}

TEST(BenchMethods, TheExpectationOfYosoHashesNothing) {
  EXPECT_TRUE(parse_method("yoso").hashes());
  EXPECT_TRUE(parse_method("reformer(rounds=3)").hashes());
  EXPECT_FALSE(parse_method("yoso(kind=expectation)").hashes());
  EXPECT_FALSE(parse_method("local").hashes());
}

TEST(BenchMethods, UnknownOnesAreAnsweredWithWhatIsKnown) {
  const auto message_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message_of([] { parse_method("perfomer"); }),
              HasSubstr("\"perfomer\"; the nearest known one is \"performer\"; choose from"));
  EXPECT_THAT(message_of([] { parse_method(""); }), HasSubstr("softmax"));
  EXPECT_THAT(message_of([] { parse_method("dba:flash"); }), HasSubstr("released"));
  EXPECT_THAT(message_of([] { parse_method("softmax:released"); }), HasSubstr("cudnn"));
  EXPECT_THAT(message_of([] { parse_precision("float8"); }), HasSubstr("bfloat16"));
}

TEST(BenchMethods, OptionsStandInBracketsBehindTheName) {
  EXPECT_THAT(split_methods("performer(features=8, kernel=relu), dba:released,softmax"),
              ElementsAre("performer(features=8, kernel=relu)", "dba:released", "softmax"));
  const auto method = parse_method("linformer(k=8, share=none):reference");
  EXPECT_EQ(method.attention, "linformer");
  EXPECT_EQ(method.options, "k=8, share=none");
  EXPECT_EQ(method.backend, Backend::reference);
  EXPECT_EQ(attention_text(method, 100), "linformer(k=8, share=none, max_length=100)");
  EXPECT_EQ(attention_text(parse_method("linformer(max_length=9)"), 100), "linformer(max_length=9)");
  EXPECT_EQ(attention_text(parse_method("local"), 100), "local");
  const auto refused = [](const char* name, const char* sentence) {
    try {
      parse_method(name);
      ADD_FAILURE() << name;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(sentence));
    }
  };
  refused("performer(feature=8)", "the nearest known one is \"features\"");
  refused("performer(features=0)", "integer of 1 or more");
  refused("performer(features=8", "in brackets");
  refused("dba(d_p=8)", "no options of its own");
}

TEST(BenchMethods, ScopeChoosesTheBackEndAndGivesItBack) {
  auto& context = at::globalContext();
  const bool flash = context.userEnabledFlashSDP();
  {
    const MethodScope scope(parse_method("softmax:math"));
    EXPECT_TRUE(context.userEnabledMathSDP());
    EXPECT_FALSE(context.userEnabledFlashSDP());
  }
  EXPECT_EQ(context.userEnabledFlashSDP(), flash);
  {
    const MethodScope scope(parse_method("dba:reference"));
    EXPECT_EQ(backend(), Backend::reference);
  }
  EXPECT_EQ(backend(), Backend::automatic);
}

TEST(BenchFigures, QuartilesLieBetweenTheSamples) {
  const auto five = quartiles_of({5, 1, 4, 2, 3});
  EXPECT_DOUBLE_EQ(five.low, 2);
  EXPECT_DOUBLE_EQ(five.median, 3);
  EXPECT_DOUBLE_EQ(five.high, 4);
  const auto two = quartiles_of({1, 3});
  EXPECT_DOUBLE_EQ(two.low, 1.5);
  EXPECT_DOUBLE_EQ(two.median, 2);
  EXPECT_DOUBLE_EQ(quartiles_of({7}).high, 7);
  EXPECT_TRUE(std::isnan(quartiles_of({}).median));
}

TEST(BenchFigures, RatiosAreTakenAtTheSameCaseOnly) {
  std::vector<Result> results = {timed("softmax", 0.6, 64), timed("dba", 0.2, 64), timed("dba", 0.1, 128)};
  add_ratios(results, {"softmax", "nobody"});
  EXPECT_DOUBLE_EQ(results[0].ratios[0], 1);
  EXPECT_DOUBLE_EQ(results[1].ratios[0], 0.6 / 0.2);
  EXPECT_TRUE(std::isnan(results[2].ratios[0]));
  EXPECT_TRUE(std::isnan(results[1].ratios[1]));
}

}  // namespace
}  // namespace dba::bench
