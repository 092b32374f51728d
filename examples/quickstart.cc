// Builds a DBA classifier, runs it on random packed sequences, and says what it computed.

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <iostream>

#include "dba/dba.h"

int main() {
  torch::manual_seed(1);
  auto layer = dba::EncoderLayerOptions(64, 4, 128).attention_options(dba::DBAttentionOptions(64, 4).d_p(16).d_in(24));
  dba::Classifier model(dba::ClassifierOptions(dba::EncoderOptions(layer, 2), 10).vocabulary(256).max_length(4096));
  std::cout << model << "\n\n";
  int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) {
    parameters += parameter.numel();
  }
  std::printf("parameters: %lld\n", static_cast<long long>(parameters));

  // Four sequences of 100, 7, 1,000 and 4,096 tokens, one behind the other: nothing is padded.
  const auto bounds = torch::tensor({0, 100, 107, 1107, 5203});
  const auto tokens = torch::randint(256, {5203});
  const auto labels = torch::tensor({3, 1, 4, 1});
  const auto logits = model->forward(tokens, dba::Sequences::packed(bounds, tokens.size(0)));
  const auto loss = torch::nn::functional::cross_entropy(logits, labels);
  loss.backward();
  std::printf("loss before training: %.4f (a guess among ten classes: %.4f)\n", loss.item<double>(), std::log(10.0));

  // A sequence alone gives the logits it gave among others.
  const auto alone = model->forward(tokens.slice(0, 107, 1107), dba::Sequences::packed(torch::tensor({0, 1000}), 1000));
  std::printf("sequence 3 alone and in the batch differ by at most %.1e\n",
              (alone - logits.slice(0, 2, 3)).abs().max().item<double>());

  // The same layer, two orders of products: the two streaming passes and the equations as written.
  dba::DBAttention two_pass(dba::DBAttentionOptions(64, 4).z_update(dba::ZUpdate::own));
  auto as_written = std::dynamic_pointer_cast<dba::DBAttentionImpl>(two_pass->clone());
  as_written->options.order(dba::Order::direct);
  const auto x = torch::randn({2, 1000, 64});
  std::printf("two passes and the equations as written differ by at most %.1e\n",
              (two_pass->forward(x).y - as_written->forward(x).y).abs().max().item<double>());
}
