#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "dba/nn/classifier.h"
#include "dba/nn/softmax_attention.h"
#include "support/comparison.h"
#include "support/module_weights.h"
#include "support/small_sets.h"
#include "train/resident_set.h"

/// Symbols that are no tokens: what is computed without them is what a mask over whole sequences would give.
namespace dba::test::left_out {
namespace {

constexpr int64_t kWidth = 8, kHeads = 2, kSlots = 3, kSymbols = 5, kLength = 14;

Classifier picture_model(const std::string& attention, Position position) {
  const auto dba = DBAttentionOptions(kWidth, kHeads).d_p(kSlots).d_in(6);
  const auto layer = EncoderLayerOptions(kWidth, kHeads, 12).attention(attention).attention_options(dba);
  Classifier model(ClassifierOptions(EncoderOptions(layer, 1).slots_layer_norm(true), 3)
                       .vocabulary(kSymbols)
                       .position(position)
                       .max_length(kLength)
                       .pooling(Pool::mean));
  model->to(at::kDouble);
  Random(71).fill(*model);
  return model;
}

/// A softmax over `axis` in which masked tokens have no part, from one in which they have: what it must be multiplied
/// by.
at::Tensor masked_share(const at::Tensor& softmax, const at::Tensor& mask, int64_t axis) {
  return mask / (softmax * mask).sum(axis, /*keepdim=*/true);
}

/// DBA over all n tokens x (n, d) of which those with mask 0 are neither compressed nor asked for.
at::Tensor masked_attention(const DBAttentionImpl& module, const at::Tensor& x, const at::Tensor& z,
                            const at::Tensor& mask) {
  const PaperWeights weights = paper_weights(module);
  const PaperResult open = paper_attention(x, z, weights, kHeads, /*linear=*/false);
  PaperMasks masks;
  masks.w_r = masked_share(open.w_r, mask, 2);
  masks.w_c = masked_share(open.w_c, mask, 2);
  masks.w_c_prime = masked_share(open.w_c_prime, mask.unsqueeze(1), 1);
  return paper_attention(x, z, weights, kHeads, /*linear=*/false, masks).y;
}

at::Tensor masked_attention(SoftmaxAttentionImpl& module, const at::Tensor& x, const at::Tensor& mask) {
  const auto heads = [](const at::Tensor& rows) { return rows.view({rows.size(0), kHeads, -1}).transpose(0, 1); };
  const at::Tensor q = heads(module.w_q(x)), k = heads(module.w_k(x)), v = heads(module.w_v(x));
  const at::Tensor scores = q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(kWidth / kHeads));
  const at::Tensor map = at::softmax(scores.masked_fill(mask.eq(0), -INFINITY), 2);
  return module.w_o(map.matmul(v).transpose(0, 1).reshape({x.size(0), kWidth}));
}

/// Logits of one whole sequence (n) of symbols; `mask` is 1 where there is a token.
at::Tensor masked_logits(Classifier& model, const at::Tensor& symbols, const at::Tensor& mask) {
  BackboneImpl& backbone = *model->backbone;
  const auto whole = Sequences::dense(1, symbols.size(0), at::kCPU);
  const at::Tensor embedded = backbone.positions(backbone.tokens->weight.index_select(0, symbols), whole);
  const at::Tensor x = backbone.embedding_norm(embedded);
  EncoderLayer layer = backbone.encoder->layer(0);
  at::Tensor y;
  if (auto* dba = dynamic_cast<DBAttentionImpl*>(layer->attention.get()))
    y = masked_attention(*dba, x, backbone.encoder->slots(1), mask);
  else
    y = masked_attention(dynamic_cast<SoftmaxAttentionImpl&>(*layer->attention), x, mask);
  const at::Tensor out = layer->block(x, y, at::Tensor());
  return model->head((out * mask.unsqueeze(1)).sum(0, /*keepdim=*/true) / mask.sum());
}

TEST(LeftOutSymbols, AreAMaskOverWholeSequences) {
  const at::Tensor pictures = at::tensor({3, 0, 1, 0, 0, 2, 4, 0, 0, 0, 1, 0, 2, 4,   //
                                          3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4,   //
                                          3, 2, 1, 2, 2, 2, 1, 1, 1, 2, 2, 1, 2, 4},  //
                                         at::kLong)
                                  .view({3, kLength});
  const at::Tensor mask = pictures.ne(0);
  const at::Tensor bounds = at::cat({at::zeros({1}, at::kLong), mask.sum(1).cumsum(0)});
  const at::Tensor tokens = pictures.masked_select(mask);
  const at::Tensor positions = at::arange(kLength).expand({3, kLength}).masked_select(mask);
  const Sequences sequences = Sequences::packed(bounds, tokens.size(0));
  for (const char* const attention : {"dba", "softmax"})
    for (const Position position : {Position::learned, Position::sinusoidal}) {
      SCOPED_TRACE(attention + (" " + to_string(position)));
      Classifier model = picture_model(attention, position);
      std::vector<at::Tensor> expected;
      for (int64_t b = 0; b < 3; ++b)
        expected.push_back(masked_logits(model, pictures[b], mask[b].to(at::kDouble)));
      expect_same_function({{"logits", model(tokens, sequences, positions)}}, {at::cat(expected)},
                           with_parameters({}, *model));
      // Counted positions are other ones.
      EXPECT_FALSE(close(model(tokens, sequences), at::cat(expected)));
    }
}

TEST(PositionEmbeddingTest, TakesGivenPositionsOfTheRealRows) {
  PositionEmbedding learned(PositionEmbeddingOptions(4).max_length(6));
  const Sequences sequences = Sequences::ranges(at::tensor({0, 3}), at::tensor({2, 4}), 5);
  const at::Tensor given = at::tensor({5, 0, -7, 2, 1000}, at::kInt);
  const at::Tensor y = learned(at::zeros({5, 4}), sequences, given);
  EXPECT_TRUE(
      identical(y.index_select(0, at::tensor({0, 1, 3})), learned->weight.index_select(0, at::tensor({5, 0, 2}))));
  expect_refusal([&] { learned(at::zeros({5, 4}), sequences, given + 1); }, {"PositionEmbedding", "6", "7"});
  expect_refusal([&] { learned(at::zeros({5, 4}), sequences, given - 1); }, {"PositionEmbedding", "from 0 on", "-1"});
  expect_refusal([&] { learned(at::zeros({5, 4}), sequences, given.slice(0, 0, 4)); }, {"each of the 5 rows"});
  expect_refusal([&] { learned(at::zeros({5, 4}), sequences, given.to(at::kFloat)); }, {"integer"});
}

/// Letters from a to o are no tokens; some examples keep none.
train::testing_sets::SmallSet half_of_the_letters(data::Kind kind) {
  data::TokeniserOptions options;
  for (int32_t letter = 'a'; letter <= 'o'; ++letter)
    options.leave_out.push_back(letter);
  return train::testing_sets::SmallSet(kind, options);
}

void expect_tokens(const data::Tokeniser& tokeniser, const data::SymbolSpan& whole, const at::Tensor& input,
                   const at::Tensor& positions, const Sequences& sequences, int64_t b) {
  int64_t row = sequences.begin[b].item<int64_t>();
  int64_t place = 0;
  for (const int32_t symbol : whole) {
    if (!tokeniser.leaves_out(symbol)) {
      EXPECT_EQ(input[row].item<int64_t>(), symbol);
      EXPECT_EQ(positions[row].item<int64_t>(), place);
      ++row;
    }
    ++place;
  }
  EXPECT_EQ(sequences.end[b].item<int64_t>(), row);
}

TEST(LeftOutSymbols, AreInNoBatchAndTheOthersKnowTheirPositions) {
  for (const auto kind : {data::Kind::tokens, data::Kind::pairs}) {
    const auto small = half_of_the_letters(kind);
    const auto& tokeniser = small.set().encoding().tokeniser;
    const train::ResidentSet rounded(small.set(), nullptr, at::kCPU, train::Rows::rounded);
    for (const auto& examples : small.batches()) {
      const auto made = train::collate(small.set(), examples, nullptr);
      const auto gathered = rounded.batch(examples);
      for (const auto* batch : {&made, &gathered}) {
        for (size_t i = 0; i < examples.size(); ++i) {
          const auto example = small.set().example(examples[i]);
          const auto b = static_cast<int64_t>(i);
          expect_tokens(tokeniser, example.first, batch->input, batch->positions, batch->sequences, b);
          if (kind == data::Kind::pairs)
            expect_tokens(tokeniser, example.second, batch->second_input, batch->second_positions,
                          batch->second_sequences, b);
        }
      }
      EXPECT_TRUE(made.positions.defined());
      EXPECT_EQ(made.second_positions.defined(), kind == data::Kind::pairs);
    }
  }
}

TEST(LeftOutSymbols, MayLeaveNothingOfASequence) {
  const auto small = half_of_the_letters(data::Kind::tokens);
  const auto lengths = small.set().lengths();
  const auto empty = static_cast<size_t>(std::find(lengths.begin(), lengths.end(), 0) - lengths.begin());
  ASSERT_LT(empty, lengths.size());
  train::Model model(small.plan(0.0));
  for (const auto& examples : {std::vector<size_t>{empty}, std::vector<size_t>{0, empty, 1}})
    EXPECT_TRUE(at::isfinite(model.forward(train::collate(small.set(), examples, nullptr))).all().item<bool>());
}

}  // namespace
}  // namespace dba::test::left_out
