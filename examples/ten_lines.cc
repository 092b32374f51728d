// The ten lines of the README.

#include <dba/dba.h>
#include <torch/torch.h>

int main() {
  auto attention = dba::DBAttentionOptions(256, 4).d_p(16).d_in(24);
  auto layer = dba::EncoderLayerOptions(256, 4, 1024).attention_options(attention);
  auto options = dba::ClassifierOptions(dba::EncoderOptions(layer, 4), /*classes=*/2);
  dba::Classifier model(options.vocabulary(257).max_length(4096));
  auto tokens = torch::randint(257, {5203});  // three sequences, one behind the other
  auto sequences = dba::Sequences::packed(torch::tensor({0, 107, 1107, 5203}), tokens.size(0));
  auto logits = model->forward(tokens, sequences);
  torch::nn::functional::cross_entropy(logits, torch::tensor({0, 1, 0})).backward();
  dba::save_safetensors(*model, "model.safetensors");
}
