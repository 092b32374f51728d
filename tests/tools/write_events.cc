// write_events FOLDER: the curves that tests/python/test_tensorboard.py expects. A first run writes the steps 1 to 10;
// a second one goes on from a checkpoint at step 6 and writes 7 to 12.

#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>

#include "dba/run/event_writer.h"

namespace {

void write_steps(dba::run::EventWriter& writer, int first, int last, float offset) {
  for (int step = first; step <= last; ++step) {
    const std::array scalars = {dba::run::Scalar{"train/loss", 1.0f / static_cast<float>(step) + offset},
                                dba::run::Scalar{"validation/größe", static_cast<float>(step) * 0.25f}};
    writer.write(step, scalars, 1'700'000'000.5 + step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_events FOLDER\n", stderr);
    return 2;
  }
  try {
    {
      dba::run::EventWriter first(argv[1]);
      write_steps(first, 1, 10, 0.0f);
    }
    dba::run::EventWriter second(argv[1], /*resumed_after=*/6);
    write_steps(second, 7, 12, 100.0f);
    const std::array odd = {dba::run::Scalar{"odd", std::numeric_limits<float>::infinity()},
                            dba::run::Scalar{"odder", std::nanf("")}};
    second.write(std::int64_t{1} << 40, odd, 1'800'000'000.0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "write_events: %s\n", error.what());
    return 1;
  }
  return 0;
}
