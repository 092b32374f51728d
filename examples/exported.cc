// Runs a package that `dba export` wrote, without Python: prints the logits of every sequence, one line each.
// usage: exported PACKAGE.pt2 INPUT.safetensors
//
// INPUT holds the arguments of the package under the names that the exported model gives them: input (N) symbols or
// (N, f) numbers, one sequence behind the other, and offsets (B + 1), where each begins and the last one ends; for a
// model of pairs input_1, offsets_1, input_2 and offsets_2.
// Linking dba::dba registers the operators that the package calls.

#include <dba/dba.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::vector<at::Tensor> arguments_in(const std::string& path) {
  const auto tensors = dba::load_tensors(path).tensors;
  const std::vector<std::string> one{"input", "offsets"}, pair{"input_1", "offsets_1", "input_2", "offsets_2"};
  std::vector<at::Tensor> arguments;
  for (const auto& name : tensors.contains("input_1") ? pair : one) {
    if (!tensors.contains(name)) {
      throw std::runtime_error(path + ": holds no tensor called " + name);
    }
    arguments.push_back(tensors.at(name));
  }
  return arguments;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: exported PACKAGE.pt2 INPUT.safetensors\n");
    return 2;
  }
  try {
    const c10::InferenceMode no_gradients;
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    const auto logits = model.run(arguments_in(argv[2])).at(0).contiguous();
    for (int64_t row = 0; row < logits.size(0); ++row) {
      for (int64_t column = 0; column < logits.size(1); ++column) {
        std::printf("%s%.9g", column > 0 ? " " : "", logits[row][column].item<float>());
      }
      std::printf("\n");
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "exported: %s\n", error.what_without_backtrace());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exported: %s\n", error.what());
    return 1;
  }
}
