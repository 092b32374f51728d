#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "dba/config/config_file.h"
#include "dba/nn/make_attention.h"
#include "dba/train/batches.h"
#include "dba/train/model.h"
#include "dba/zoo.h"
#include "support/comparison.h"
#include "zoo/cases.h"
#include "zoo/layers.h"
#include "zoo/random_blocks.h"
#include "zoo/report.h"

namespace dba::test {
namespace {

using ::testing::HasSubstr;

TEST(Zoo, HoldsTwentyMembersThatConfigurationsAndMakeAttentionKnow) {
  const auto all = member_names();
  EXPECT_EQ(all.size(), 20u);
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 20u);
  const auto methods = attention_methods();
  for (const auto& name : all)
    EXPECT_THAT(methods, ::testing::Contains(name));
  for (const auto& name : all) {
    config::TrainConfig config;
    EXPECT_NO_THROW(config::apply_override(config, "model.method=" + name)) << name;
  }
}

TEST(Zoo, ATrainedModelIsOfTheMethodThatItsConfigurationNames) {
  const std::vector<data::Encoded> examples{{{5, 6, 7, 8}, {}, {}, 0, false}, {{9, 10}, {}, {}, 1, false}};
  const auto path = std::filesystem::path(::testing::TempDir()) / "zoo_model.safetensors";
  for (const auto& name : member_names()) {
    SCOPED_TRACE(name);
    train::ModelPlan plan;
    plan.encoding.labels = data::LabelSet({"a", "b"});
    plan.longest = 64;
    plan.config.model.d = 8;
    plan.config.model.heads = 2;
    plan.config.model.method = name;
    plan.config.model.method_options = name == "linformer" ? "k=3" : "";
    train::Model model(plan);
    model.module().eval();
    const auto batch = train::collate(examples, plan.encoding, nullptr);
    const at::Tensor logits = model.forward(batch);
    int64_t columns = 0;
    for (const auto& item : model.module().named_parameters())
      columns = item.key().ends_with(".attention.e") ? item.value().size(2) : columns;
    EXPECT_EQ(columns, name == "linformer" ? plan.longest : 0);
    model.save(path);
    auto loaded = train::Model::load(path);
    loaded.module().eval();
    EXPECT_TRUE(identical(loaded.forward(batch), logits));
    if (zoo::member(name).capabilities.needs_max_length) {
      plan.config.model.method_options = "max_length=63";
      expect_refusal([&] { train::Model{plan}; }, {"model.method_options: max_length=63", "64", "data.max_length=63"});
    }
  }
  std::filesystem::remove(path);
}

TEST(Zoo, EveryMemberHasACaseWithAFormula) {
  std::set<std::string> tested = {"dba"};
  for (const auto& one : zoo_cases())
    tested.insert(one.member);
  for (const auto& name : member_names())
    EXPECT_EQ(tested.count(name), 1u) << name;
}

TEST(Zoo, RefusesWhatItDoesNotKnow) {
  expect_refusal([] { zoo::make("longfromer", small()); }, {"\"longfromer\"", "nearest", "\"longformer\"", "softmax"});
  for (const char* upper : {"LOCAL", "LOC"})  // a letter's case is no mistake
    expect_refusal([&] { zoo::make(upper, small()); }, {upper, "nearest known one is \"local\""});
  expect_refusal([] { make_attention("linfomer", small()); }, {"\"linfomer\"", "nearest", "\"linformer\""});
  expect_refusal([] { zoo::make("local", small(), {{"blok", "4"}}); }, {"local", "\"blok\"", "nearest", "\"block\""});
  expect_refusal([] { zoo::make("linear", small(), {{"block", "4"}}); }, {"linear", "no options", "\"block\""});
  expect_refusal([] { zoo::make("local", small(), {{"block", "0"}}); }, {"block", "1 or more", "\"0\""});
  expect_refusal([] { zoo::make("local", small(), {{"block", "4x"}}); }, {"block", "integer", "\"4x\""});
  const std::string huge(30, '9');
  expect_refusal([&] { zoo::make("local", small(), {{"block", huge}}); }, {"block", "at most", huge});
  expect_refusal([&] { zoo::make("local", small(), {{"block", "-" + huge}}); }, {"block", "1 or more", "-" + huge});
  expect_refusal([&] { zoo::make("local", small(), {{"block", ""}}); }, {"block", "1 or more", "\"\""});
  expect_refusal(
      [] {
        zoo::make("performer", small(), {{"kernel", "cosine"}});
      },
      {"kernel", "softmax, relu", "\"cosine\""});
  expect_refusal([] { make_attention("local(block)", small()); }, {"name=value", "\"block\""});
  expect_refusal([] { make_attention("local(block=4, block=5)", small()); }, {"block", "twice"});
  expect_refusal([] { make_attention("local(block=4", small()); }, {"name(option=value", "\"local(block=4\""});
  expect_refusal([] { make_attention("dba(block=4)", small()); }, {"\"dba\"", "no options", "block=4"});
  expect_refusal([] { zoo::make("bigbird", small(), {{"window", "4"}}); }, {"window", "odd", "4"});
  expect_refusal([] { zoo::make("reformer", small(), {{"buckets", "5"}}); }, {"buckets", "even", "5"});
  expect_refusal([] { zoo::make("pixelfly", small(), {{"butterfly", "12"}}); }, {"butterfly", "power of two", "12"});
  expect_refusal([] { zoo::make("nystromformer", small(), {{"conv", "4"}}); }, {"conv", "odd", "4"});
  expect_refusal([] { zoo::make("yoso", small(), {{"tau", "17"}}); }, {"tau", "at most 16", "17"});
  expect_refusal([] { zoo::make("yoso", small(), {{"hashes", "32768"}}); }, {"hashes", "at most 32767", "32768"});
  expect_refusal([&] { zoo::make("yoso", small(), {{"seed", huge}}); }, {"seed", "at most 9007199254740992"});
  const auto layer = zoo::make("local", small());
  auto& attention = dynamic_cast<zoo::ZooAttention&>(*layer);
  expect_refusal([&] { attention.forward(at::zeros({1, 4, 8}), std::nullopt, {}, true); }, {"local", "need_weights"});
  expect_refusal([&] { attention.forward(at::zeros({1, 4, 7})); }, {"local", "8", "7"});
  expect_refusal([&] { attention.forward(at::zeros({1, 4, 8}, at::kDouble)); }, {"local", "Float", "Double"});
  const auto crossing = zoo::make("linear", small());
  expect_refusal(
      [&] {
        dynamic_cast<zoo::ZooAttention&>(*crossing).attend_to(at::zeros({2, 4, 8}), Sequences::dense(2, 4, at::kCPU),
                                                              at::zeros({3, 4, 8}), Sequences::dense(3, 4, at::kCPU));
      },
      {"linear", "memory", "2", "3"});
  for (const auto& name : member_names()) {
    if (!zoo::member(name).capabilities.cross_attention)
      continue;
    const auto asking = zoo::make(name, small(), with_length(zoo::member(name)));
    const auto two = Sequences::dense(2, 4, at::kCPU);
    for (const auto type : {at::kDouble, at::kHalf})
      expect_refusal(
          [&] {
            dynamic_cast<zoo::ZooAttention&>(*asking).attend_to(at::zeros({8, 8}), two, at::zeros({8, 8}, type), two);
          },
          {name, "memory", "Float", at::toString(type)});
  }
}

TEST(Zoo, AConfigurationIsCheckedWithoutData) {
  config::ModelConfig model;
  for (const auto& name : member_names()) {
    model.method = name;
    EXPECT_NO_THROW(train::check_attention(model)) << name;
  }
  const auto refused = [](const std::string& method, const std::string& options,
                          const std::vector<std::string>& words) {
    config::ModelConfig wrong;
    wrong.method = method;
    wrong.method_options = options;
    expect_refusal([&] { train::check_attention(wrong); }, words);
  };
  refused("performer", "window=8", {"performer", "features", "\"window\""});
  refused("linformer", "max_length=0", {"max_length", "1 or more", "\"0\""});
  refused("bigbird", "window=4", {"window", "odd", "4"});
  refused("dba", "window=8", {"\"dba\"", "no options", "window=8"});
  refused("local", "block", {"name=value", "\"block\""});
}

TEST(Zoo, ParametersAreDrawnAnewAndChoicesKept) {
  const auto layer = zoo::make("performer", small());
  const auto buffer = layer->named_buffers()["features"].clone();
  const auto weight = layer->named_parameters()["w_q.weight"].clone();
  dynamic_cast<zoo::ZooAttention&>(*layer).reset_parameters();
  EXPECT_TRUE(identical(layer->named_buffers()["features"], buffer));
  EXPECT_FALSE(identical(layer->named_parameters()["w_q.weight"], weight));
}

TEST(Zoo, RandomBlocksAreDifferentEligibleAndTheSequencesOwn) {
  constexpr int64_t kHeads = 3, kBlocks = 20, kRandom = 4, kBeside = 1;
  const std::vector<int64_t> counts = {20, 1, 7, 0, 6};
  const at::Tensor drawn =
      zoo::random_blocks(at::tensor(counts, at::kLong), kHeads, kBlocks, kBeside, kRandom, 5).contiguous();
  const auto block = drawn.accessor<int64_t, 4>();
  std::set<std::vector<int64_t>> different;
  for (size_t b = 0; b < counts.size(); ++b) {
    const at::Tensor alone = zoo::random_blocks(at::tensor({counts[b]}, at::kLong), kHeads,
                                                std::max<int64_t>(counts[b], 1), kBeside, kRandom, 5);
    EXPECT_TRUE(identical(drawn[static_cast<int64_t>(b)].slice(1, 0, alone.size(2)), alone[0]));
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < counts[b]; ++i) {
        std::set<int64_t> chosen, eligible;
        for (int64_t j = 1; j + 1 < counts[b]; ++j)
          if (std::abs(i - j) > kBeside)
            eligible.insert(j);
        for (int64_t r = 0; r < kRandom; ++r)
          if (block[static_cast<int64_t>(b)][h][i][r] >= 0)
            chosen.insert(block[static_cast<int64_t>(b)][h][i][r]);
        EXPECT_EQ(chosen.size(), std::min<size_t>(kRandom, eligible.size()));
        EXPECT_TRUE(std::includes(eligible.begin(), eligible.end(), chosen.begin(), chosen.end()));
        if (counts[b] == kBlocks)
          different.insert({chosen.begin(), chosen.end()});
      }
    }
  }
  EXPECT_GT(different.size(), 50u) << "of 60 blocks of queries";
  // Another seed draws anew, and is not the same one head further.
  const at::Tensor other = zoo::random_blocks(at::tensor(counts, at::kLong), kHeads, kBlocks, kBeside, kRandom, 6);
  for (int64_t h = 0; h < kHeads; ++h)
    for (int64_t of_other = 0; of_other < kHeads; ++of_other)
      EXPECT_FALSE(identical(drawn[0][h], other[0][of_other])) << h << " " << of_other;
}

/// Relative distance of a member's output from that of another member with the same weights.
double distance(const std::string& name, const OptionValues& values, const std::string& other,
                const OptionValues& other_values) {
  const at::Tensor x = 0.3 * Random(12).normal({1, 48, 8});
  const at::Tensor a = run(layer_of(zoo::member(name), values), x);
  const at::Tensor b = run(layer_of(zoo::member(other), other_values), x);
  return ((a - b).norm() / b.norm()).item<double>();
}

/// The mean of it over a few seeds.
double mean_distance(const std::string& name, OptionValues values, const std::string& other,
                     const OptionValues& other_values) {
  constexpr int kSeeds = 4;
  double sum = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    values["seed"] = std::to_string(seed);
    sum += distance(name, values, other, other_values);
  }
  return sum / kSeeds;
}

TEST(Zoo, EstimatesApproachWhatTheyEstimate) {
  // 64 times as many: an eighth of the error, as long as the estimate leans to no side.
  for (const std::string name : {"performer", "scatterbrain"}) {
    const double few = mean_distance(name, {{"features", "128"}}, "softmax", {});
    const double many = mean_distance(name, {{"features", "8192"}}, "softmax", {});
    EXPECT_LT(many, few / 4) << name;
  }
  const OptionValues expectation = {{"kind", "expectation"}, {"tau", "4"}};
  const double few = mean_distance("yoso", {{"tau", "4"}, {"hashes", "8"}}, "yoso", expectation);
  const double many = mean_distance("yoso", {{"tau", "4"}, {"hashes", "512"}}, "yoso", expectation);
  EXPECT_LT(many, few / 4);
}

TEST(Zoo, PatternsThatCoverAShortSequenceAreSoftmaxAttention) {
  EXPECT_LT(distance("local", {{"block", "48"}}, "softmax", {}), 1e-12);
  EXPECT_LT(distance("longformer", {{"window", "200"}, {"globals", "0"}}, "softmax", {}), 1e-12);
  EXPECT_LT(distance("bigbird", {{"block", "16"}}, "softmax", {}), 1e-12);
  EXPECT_LT(distance("sparse", {{"block", "16"}, {"summary", "16"}}, "softmax", {}), 1e-12);
  EXPECT_LT(distance("pixelfly", {{"block", "24"}, {"rank", "48"}}, "softmax", {}), 1e-12);
  EXPECT_LT(distance("scatterbrain", {{"window", "200"}}, "softmax", {}), 1e-10);
}

TEST(Zoo, LunaHandsItsSlotsOn) {
  Random random(13);
  const PackedBatch batch({9, 3});
  const at::Tensor x = random.normal({batch.rows, 8}), z = random.normal({2, 5, 8});
  const auto make = [](ZUpdate update) {
    auto layer = zoo::make("luna", small().z_update(update));
    layer->to(at::kDouble);
    Random(14).fill(*layer);
    return layer;
  };
  const auto handed_on = [&](const std::shared_ptr<torch::nn::Module>& layer) {
    return dynamic_cast<Attention&>(*layer).forward(x, batch.sequences, z).z;
  };
  EXPECT_TRUE(identical(handed_on(make(ZUpdate::fixed)), z));
  const auto replacing = make(ZUpdate::replace), normed = make(ZUpdate::residual_norm);
  const auto weights = normed->named_parameters();
  for (const auto& item : replacing->named_parameters())
    item.value().set_data(weights[item.key()].detach());
  const at::Tensor sum = z + handed_on(replacing);
  const at::Tensor mean = sum.mean(2, true), variance = sum.var(2, /*unbiased=*/false, /*keepdim=*/true);
  EXPECT_TRUE(close(handed_on(normed),
                    (sum - mean) / (variance + 1e-5).sqrt() * weights["z_norm.weight"] + weights["z_norm.bias"]));
  expect_refusal([&] { dynamic_cast<Attention&>(*normed).forward(x, batch.sequences); }, {"luna", "z must be given"});
  expect_refusal([&] { handed_on(make(ZUpdate::own)); }, {"luna", "z must be absent"});
}

TEST(ZooReport, ShowsEveryMember) {
  const std::string table = zoo::table();
  const auto json = nlohmann::json::parse(zoo::json());
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 24);
  EXPECT_THAT(table, HasSubstr("of a layer with d = 256, four heads"));
  ASSERT_EQ(json.at("members").size(), 20u);
  for (const auto& one : json.at("members")) {
    const std::string name = one.at("name");
    EXPECT_THAT(table, HasSubstr("\n" + name + " "));
    EXPECT_EQ(nlohmann::json::parse(zoo::json(name)), one);
    const std::string page = zoo::page(name);
    EXPECT_THAT(page, HasSubstr(one.at("about").get<std::string>()));
    EXPECT_THAT(page, HasSubstr(one.at("paper").get<std::string>()));
    for (const auto& option : one.at("options"))
      EXPECT_THAT(page, HasSubstr(option.at("meaning").get<std::string>()));
  }
  expect_refusal([] { zoo::page("fnett"); }, {"\"fnett\"", "\"fnet\""});
}

TEST(ZooReport, CommittedPageIsTheRegistrys) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../docs/zoo.md";
  if (std::getenv("DBA_WRITE_DOCS") != nullptr)
    std::ofstream(path) << zoo::markdown();
  std::ifstream stream(path);
  const std::string committed((std::istreambuf_iterator<char>(stream)), {});
  EXPECT_EQ(committed, zoo::markdown()) << "run this test with DBA_WRITE_DOCS=1 to write docs/zoo.md";
}

}  // namespace
}  // namespace dba::test
