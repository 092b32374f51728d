#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "config/keys.h"
#include "config/value.h"
#include "dba/bytes/errors.h"
#include "dba/config/config_file.h"
#include "scratch_folder.h"

namespace dba::config {
namespace {

using bytes::FileError;
using bytes::FormatError;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

TrainConfig parse(const std::string& text) {
  return parse_config(text, "run.yaml");
}

#define EXPECT_REFUSED(text, ...) \
  EXPECT_THAT([&] { parse(text); }, ThrowsMessage<FormatError>(AllOf(__VA_ARGS__))) << bytes::in_quotes(text)

TEST(ConfigKeys, EveryKeyHasASectionADocumentedMeaningAndADefaultItAccepts) {
  std::set<std::string_view> names;
  for (const Key& key : keys()) {
    SCOPED_TRACE(std::string(key.name));
    EXPECT_TRUE(names.insert(key.name).second) << "named twice";
    EXPECT_TRUE(key.section().empty() || find_section(key.section()));
    EXPECT_THAT(std::string(key.documentation), testing::EndsWith("."));
    // Neither a cell of a Markdown table nor a comment could hold these.
    EXPECT_EQ(key.documentation.find_first_of("|\n"), std::string_view::npos);
    const std::string indent = key.section().empty() ? "" : "  ";
    const std::string head = key.section().empty() ? "" : std::string(key.section()) + ":\n";
    EXPECT_EQ(parse(head + indent + std::string(key.last_name()) + ": " + written({}, key)), TrainConfig());
  }
}

// Two keys that share a place, or a key that has none, would lose a setting on the way through the run's folder.
TEST(ConfigKeys, EveryKeyHasAPlaceOfItsOwn) {
  std::set<const void*> places;
  TrainConfig config;
  for (const Key& key : keys()) {
    const void* const place =
        std::visit([&](const auto& kind) -> const void* { return &kind.place(config); }, key.kind);
    EXPECT_TRUE(places.insert(place).second) << key.name;
  }
}

TEST(ConfigParse, SetsWhatTheFileNamesAndKeepsTheRest) {
  const TrainConfig config = parse(
      "# a comment\n"
      "seed: 7\n"
      "device: cuda\n"
      "deterministic: false\n"
      "data:\n"
      "  train: data/train set.jsonl   # plain text with a space\n"
      "  label_column: '3'\n"
      "  text_column: 4\n"
      "model: {d: 64, heads: 8, dropout: .5}\n"
      "schedule:\n"
      "  milestones:\n"
      "    - 100\n"
      "    - +200\n"
      "optimiser:\n"
      "  betas: [0.5, 1e-3]\n"
      "train:\n");
  TrainConfig expected;
  expected.seed = 7;
  expected.device = "cuda";
  expected.deterministic = false;
  expected.data.train = "data/train set.jsonl";
  expected.data.label_column = "3";
  expected.data.text_column = "4";
  expected.model.d = 64;
  expected.model.heads = 8;
  expected.model.dropout = 0.5;
  expected.schedule.milestones = {100, 200};
  expected.optimiser.betas = {0.5, 1e-3};
  EXPECT_EQ(config, expected);
}

TEST(ConfigParse, NothingAsTextIsEmptyText) {
  EXPECT_EQ(parse("data:\n  text_column:\n").data.text_column, "");
  EXPECT_EQ(parse("data: {text_column: ~}").data.text_column, "");
}

TEST(ConfigErrors, UnknownKeysAreToldWithTheNearestName) {
  EXPECT_REFUSED("seed: 1\nmodel:\n  hedas: 4\n", StartsWith("run.yaml:3:3: "), HasSubstr("\"model.hedas\""),
                 HasSubstr("\"model.heads\""));
  EXPECT_REFUSED("modle:\n  d: 4\n", StartsWith("run.yaml:1:1: "), HasSubstr("\"modle\""), HasSubstr("\"model\""));
  EXPECT_REFUSED("attention_dropout: 0.1", HasSubstr("\"model.attention_dropout\""));
  EXPECT_REFUSED("train:\n  weight_decay: 0.1", HasSubstr("\"optimiser.weight_decay\""));
  EXPECT_REFUSED("model.d: 4", HasSubstr("unknown key \"model.d\""), HasSubstr("below the section"));
  EXPECT_REFUSED("<<: {seed: 1}", HasSubstr("unknown key \"<<\""));
}

TEST(ConfigErrors, WrongTypesAndValuesAreToldWithWhatWasExpected) {
  EXPECT_REFUSED("model:\n  d: wide\n", StartsWith("run.yaml:2:6: model.d: expected integer, at least 1"),
                 HasSubstr("got \"wide\""));
  EXPECT_REFUSED("model: {d: 0}", HasSubstr("at least 1"), HasSubstr("got \"0\""));
  EXPECT_REFUSED("model: {d: 1.5}", HasSubstr("integer"));
  EXPECT_REFUSED("model: {d: 1e3}", HasSubstr("integer"));
  EXPECT_REFUSED("model: {d: 0x10}", HasSubstr("integer"));
  EXPECT_REFUSED("model: {d: '8'}", HasSubstr("got the text \"8\""));
  EXPECT_REFUSED("model: {d: }", HasSubstr("got nothing"));
  EXPECT_REFUSED("model: {d: [1, 2]}", HasSubstr("got the list \"[1, 2]\""));
  EXPECT_REFUSED("model: {d: {x: 1}}", HasSubstr("model.d: expected integer"), HasSubstr("got a mapping"));
  EXPECT_REFUSED("model: {dropout: 1}", HasSubstr("number, at least 0 and below 1"), HasSubstr("got \"1\""));
  EXPECT_REFUSED("optimiser: {lr: 0}", HasSubstr("number, above 0"));
  EXPECT_REFUSED("optimiser: {lr: nan}", HasSubstr("got \"nan\""));
  EXPECT_REFUSED("optimiser: {lr: .inf}", HasSubstr("got \".inf\""));
  EXPECT_REFUSED("optimiser: {lr: 1e999}", HasSubstr("got \"1e999\""));
  EXPECT_REFUSED("optimiser: {betas: [0.9]}", HasSubstr("two numbers"), HasSubstr("[0.9]"));
  EXPECT_REFUSED("optimiser: {betas: 0.9}", HasSubstr("two numbers"));
  EXPECT_REFUSED("schedule: {milestones: [2, 1]}", HasSubstr("increasing"));
  EXPECT_REFUSED("schedule: {milestones: [1, [2]]}", HasSubstr("a list where none can be"));
  EXPECT_REFUSED("schedule: {milestones: [1, ~]}", HasSubstr("schedule.milestones: an empty item"));
  EXPECT_REFUSED("deterministic: yes", HasSubstr("true or false"), HasSubstr("got \"yes\""));
  EXPECT_REFUSED("device: gpu", HasSubstr("one of auto, cpu, cuda"), HasSubstr("got \"gpu\""));
  EXPECT_REFUSED("seed: 9223372036854775808", HasSubstr("integer"));
  EXPECT_REFUSED("data: {train: \"a\\0b\"}", HasSubstr("data.train: expected text"));
}

TEST(ConfigErrors, WhatIsNoMappingIsRefused) {
  EXPECT_REFUSED("", StartsWith("run.yaml:1:1: the file is empty"));
  EXPECT_REFUSED("\n# only a comment\n", HasSubstr("the file is empty"));
  EXPECT_REFUSED("---\n", HasSubstr("the file is empty"));
  EXPECT_REFUSED("just text", HasSubstr("expected a mapping"), HasSubstr("\"just text\""));
  EXPECT_REFUSED("- seed\n- 1\n", HasSubstr("expected a mapping"), HasSubstr("got a list"));
  EXPECT_REFUSED("model: 5", StartsWith("run.yaml:1:8: model is a section"), HasSubstr("got \"5\""));
  EXPECT_REFUSED("model: [d]", HasSubstr("model is a section"));
  EXPECT_REFUSED("? {a: b}\n: 1\n", HasSubstr("a mapping where none can be"));
  EXPECT_REFUSED("? [a]\n: 1\n", HasSubstr("a list where none can be"));
}

TEST(ConfigErrors, RepeatedKeysAreRefused) {
  EXPECT_REFUSED("seed: 1\ndevice: cpu\nseed: 1\n", StartsWith("run.yaml:3:1: "), HasSubstr("\"seed\""),
                 HasSubstr("a second time"));
  EXPECT_REFUSED("model: {d: 1}\nmodel: {heads: 1}\n", StartsWith("run.yaml:2:1: "), HasSubstr("\"model\""));
  EXPECT_REFUSED("model: {d: 1, d: 2}", HasSubstr("\"model.d\""));
}

TEST(ConfigErrors, SyntaxErrorsAreToldWithLineAndColumn) {
  EXPECT_REFUSED("seed: 1\nmodel: {d: 3\n", StartsWith("run.yaml:"), HasSubstr("not YAML: "));
  EXPECT_REFUSED("data: {}\n  model: 3\n", StartsWith("run.yaml:2:3: not YAML: "));
  EXPECT_REFUSED("data:\n  train: \"open\n", StartsWith("run.yaml:"), HasSubstr("without its closing quote"));
  EXPECT_REFUSED("data:\n  train: 'open", StartsWith("run.yaml:"), HasSubstr("without its closing quote"));
  EXPECT_REFUSED("seed: 1\n---\nseed: 2\n", StartsWith("run.yaml:2:1: a second document"));
}

TEST(ConfigErrors, HostileYamlIsRefusedAtOnce) {
  EXPECT_REFUSED("seed: &a 1", HasSubstr("anchor"));
  EXPECT_REFUSED("model: &a {d: 1}", HasSubstr("anchor"));
  EXPECT_REFUSED("seed: !!int 1", HasSubstr("tag"));
  // Each line ten times the line before: a billion in the end, would somebody follow.
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i)
      bomb += (i ? ",*" : "*") + std::string(1, static_cast<char>(c - 1));
    bomb += "]\n";
  }
  EXPECT_REFUSED(bomb, HasSubstr("unknown key"));
  EXPECT_REFUSED("schedule: {milestones: *a}", StartsWith("run.yaml:1:"));
  for (const std::string opening : {"[", "{", "- ", "? ", "{model: ", "[model: {"}) {
    std::string deep;
    for (int i = 0; i < 100'000; ++i)
      deep += opening;
    EXPECT_THROW(parse(deep), FormatError) << opening;
    EXPECT_THROW(parse("model: " + deep), FormatError) << opening;
    EXPECT_THROW(parse("schedule: {milestones: " + deep), FormatError) << opening;
  }
  EXPECT_REFUSED("model: {" + std::string(900'000, 'd') + ": 1}", StartsWith("run.yaml:1:"));
  EXPECT_REFUSED("model: {" + std::string(1'000, 'd') + ": 1}", HasSubstr("unknown key"));
  EXPECT_REFUSED("model: {d: " + std::string(900'000, '1') + "}", HasSubstr("got \"111"));
  EXPECT_REFUSED(std::string(kLargestFile + 1, '#'), HasSubstr("at most 1048576"));
}

TEST(ConfigErrors, LongAndOddTextIsCutAndEscapedInMessages) {
  try {
    parse("device: " + std::string(100'000, 'x') + "\n");
    ADD_FAILURE() << "accepted";
  } catch (const FormatError& error) {
    EXPECT_LT(std::string(error.what()).size(), 500u);
  }
}

TEST(ConfigOverride, SetsOneKey) {
  TrainConfig config;
  apply_override(config, "model.d=64");
  apply_override(config, "seed = 5");
  apply_override(config, "deterministic=false");
  apply_override(config, "data.train=my data/a=b.csv");
  apply_override(config, "optimiser.betas=0.8,0.9");
  apply_override(config, "schedule.milestones=[10, 20]");
  TrainConfig expected;
  expected.model.d = 64;
  expected.seed = 5;
  expected.deterministic = false;
  expected.data.train = "my data/a=b.csv";
  expected.optimiser.betas = {0.8, 0.9};
  expected.schedule.milestones = {10, 20};
  EXPECT_EQ(config, expected);
  apply_override(config, "schedule.milestones=");
  EXPECT_THAT(config.schedule.milestones, ElementsAre());
}

TEST(ConfigOverride, TellsWhatIsWrong) {
  TrainConfig config;
  const auto refused = [&](const std::string& assignment, const auto& message) {
    EXPECT_THAT([&] { apply_override(config, assignment); }, ThrowsMessage<std::invalid_argument>(message));
  };
  refused("model.d", AllOf(HasSubstr("--set \"model.d\""), HasSubstr("key=value")));
  refused("model.hedas=4", AllOf(HasSubstr("unknown key \"model.hedas\""), HasSubstr("\"model.heads\"")));
  refused("model=4", HasSubstr("is a section"));
  refused("=4", HasSubstr("unknown key \"\""));
  refused("model.d=wide", AllOf(HasSubstr("model.d: expected integer, at least 1"), HasSubstr("got \"wide\"")));
  refused("model.dropout=1", HasSubstr("below 1"));
  refused("device=gpu", HasSubstr("one of auto, cpu, cuda"));
  refused("model.method=perfomer", HasSubstr("got \"perfomer\"; the nearest known one is \"performer\""));
  refused("schedule.milestones=1,,2", HasSubstr("increasing integers"));
  EXPECT_EQ(config, TrainConfig());
}

TEST(ConfigYaml, WrittenAndReadAgainIsTheSameBitForBit) {
  TrainConfig config;
  config.seed = std::numeric_limits<std::int64_t>::max();
  config.optimiser.lr = std::nextafter(1e-3, 1.0);
  config.optimiser.eps = std::numeric_limits<double>::denorm_min();
  config.optimiser.weight_decay = std::numeric_limits<double>::max();
  config.optimiser.betas = {1.0 / 3.0, -0.0};
  config.schedule.milestones = {1, 2, 1'000'000'000'000};
  config.model.method = "softmax";
  std::string every_byte;
  for (int byte = 1; byte < 256; ++byte)
    every_byte += static_cast<char>(byte);
  config.data.train = every_byte;
  for (const std::string odd :
       {"", " ", "~", "null", "- a: b", "# no comment", "größe/注意.csv", "'\"\\", "1e3", "\xef\xbb\xbf"}) {
    config.data.test = odd;
    for (const Comments comments : {Comments::none, Comments::documented}) {
      const TrainConfig again = parse(to_yaml(config, comments));
      EXPECT_EQ(again, config) << to_yaml(config);
      EXPECT_TRUE(std::signbit(again.optimiser.betas[1]));
    }
  }
}

TEST(ConfigYaml, DocumentedOutputTellsMeaningTypeAndDefault) {
  TrainConfig config;
  config.model.d = 96;
  const std::string yaml = to_yaml(config, Comments::documented);
  EXPECT_THAT(yaml, HasSubstr("  # Width of the tokens; divisible by model.heads.\n"
                              "  # integer, at least 1 and at most 65536; default 128\n"
                              "  d: 96\n"));
}

TEST(ConfigFile, IsReadFromTheDisk) {
  const bytes::ScratchFolder folder;
  const auto path = folder / "config.yaml";
  std::ofstream(path) << "seed: 3\n";
  EXPECT_EQ(load_config(path).seed, 3);
  std::ofstream(path) << "sede: 3\n";
  EXPECT_THAT([&] { load_config(path); }, ThrowsMessage<FormatError>(StartsWith(path.string() + ":1:1: ")));
  EXPECT_THAT([&] { load_config(folder / "none"); }, ThrowsMessage<FileError>(HasSubstr("No such file")));
}

TEST(ConfigReference, TheCommittedPageIsWhatTheTableSays) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../docs/config.md";
  if (std::getenv("DBA_WRITE_DOCS"))
    std::ofstream(path) << config_reference_markdown();
  std::ifstream file(path, std::ios::binary);
  const std::string committed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(committed, config_reference_markdown()) << "run this test with DBA_WRITE_DOCS=1 to write docs/config.md";
}

// A configuration without contradictions, which the cases below spoil.
TrainConfig sound() {
  TrainConfig config;
  config.data.train = "train.jsonl";
  config.train.updates = 1000;
  return config;
}

TEST(ConfigContradictions, SoundSettingsHaveNone) {
  EXPECT_THAT(contradictions(sound()), ElementsAre());
  check_config(sound(), "run.yaml");
}

TEST(ConfigContradictions, EachIsOneSentenceThatNamesTheKeys) {
  struct Case {
    std::vector<std::string> overrides;
    std::string part;
  };
  const std::vector<Case> cases = {
      {{"data.train="}, "set data.train"},
      {{"train.updates=0"}, "train.updates or train.epochs"},
      {{"model.heads=3"}, "model.d (128) must be divisible by model.heads (3)"},
      {{"model.form=released", "model.compress_width=false"}, "model.form paper only"},
      {{"model.form=released", "model.normalise=linear"}, "model.normalise linear"},
      {{"device=cpu", "precision=bfloat16"}, "needs a GPU"},
      {{"schedule.warmup=1001"}, "schedule.warmup (1001) must not exceed train.updates (1000)"},
      {{"schedule.warmup=0"}, "inverse_sqrt"},
      {{"schedule.warmup_from=0.1"}, "must not exceed optimiser.lr"},
      {{"schedule.name=steps"}, "needs schedule.milestones"},
      {{"schedule.milestones=5"}, "belong to schedule.name steps"},
      {{"schedule.name=steps", "schedule.milestones=1000"}, "before the end"},
      {{"data.validation_fraction=0"}, "data.validation_fraction above 0"},
      {{"data.validation=t", "data.test=t"}, "as_published"},
      {{"data.test=train.jsonl"}, "data.train and data.test"},
      {{"protocol=as_published"}, "set data.test"},
      {{"protocol=last_epoch", "train.patience=3"}, "set train.patience to 0"},
      {{"train.watch_test=true"}, "train.watch_test needs a test set"},
      {{"data.second_text_column=text"}, "same column"},
      {{"data.label_column=text"}, "same column"},
      {{"data.label_column="}, "data.label_column is empty"},
      {{"data.case_column=time"}, "data.case_column and data.time_column are the same column"},
      {{"data.leave_out=[0, 256]"}, "symbols of data.tokeniser byte, which are below 256, got 256"},
      {{"data.leave_out=[9]", "data.tokeniser=integer", "data.integers=9"}, "are below 9, got 9"},
      {{"data.leave_out=[0]", "data.tokeniser=whitespace"}, "data.tokeniser byte or integer"},
      {{"data.leave_out=[0]", "model.pooling=flatten"}, "model.pooling flatten"},
      {{"train.new_head=true"}, "train.init_from"},
      {{"train.checkpoint_every=0", "train.checkpoint_seconds=0"}, "No checkpoint"},
      {{"expect.accuracy=0.5"}, "expect.update"},
  };
  for (const Case& spoilt : cases) {
    TrainConfig config = sound();
    for (const std::string& assignment : spoilt.overrides)
      apply_override(config, assignment);
    EXPECT_THAT(contradictions(config), ElementsAre(AllOf(HasSubstr(spoilt.part), testing::EndsWith("."))))
        << spoilt.overrides.front();
  }
}

TEST(ConfigContradictions, AllOfThemAreToldAtOnce) {
  TrainConfig config = sound();
  config.model.heads = 3;
  config.data.train = "";
  EXPECT_THAT([&] { check_config(config, "run.yaml"); },
              ThrowsMessage<std::invalid_argument>(
                  AllOf(StartsWith("run.yaml: "), HasSubstr("\n  There are no"), HasSubstr("\n  model.d (128)"))));
}

}  // namespace
}  // namespace dba::config
