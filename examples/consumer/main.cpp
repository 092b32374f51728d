#include <dba/nn/dba_attention.h>
#include <torch/types.h>

#include <iostream>

int main() {
  auto options = dba::DBAttentionOptions(64, 4).z_update(dba::ZUpdate::own);
  dba::DBAttention attention(options);
  at::Tensor y = attention->forward(torch::randn({2, 100, 64})).y;
  std::cout << y.sizes() << ", sum " << y.sum().item<double>() << "\n";
}
