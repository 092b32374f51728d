#include "bench/settings.h"

namespace dba::bench {

std::string to_string(Kind kind) {
  switch (kind) {
    case Kind::layer:
      return "layer";
    case Kind::encoder:
      return "encoder";
    case Kind::train_step:
      return "train-step";
  }
  return "?";
}

std::string to_string(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::forward_backward:
      return "forward+backward";
    case Pass::step:
      return "step";
  }
  return "?";
}

std::string to_string(Cache cache) {
  return cache == Cache::warm ? "warm" : "cold";
}

}  // namespace dba::bench
