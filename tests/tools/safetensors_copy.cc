// safetensors_copy IN OUT: reads one safetensors file and writes another with the same tensors and metadata.

#include <cstdio>
#include <exception>

#include "dba/bytes/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: safetensors_copy IN OUT\n", stderr);
    return 2;
  }
  try {
    const auto file = dba::bytes::SafetensorsFile::open(argv[1]);
    dba::bytes::write_safetensors(argv[2], file.tensors(), file.metadata());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "safetensors_copy: %s\n", error.what());
    return 1;
  }
  return 0;
}
