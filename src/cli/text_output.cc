#include "cli/text_output.h"

#include <iostream>
#include <span>

#include "dba/bytes/atomic_write.h"

namespace dba::cli {

void write_text(const std::string& file, const std::string& text) {
  if (file == kStandardOutput) {
    std::cout << text << std::flush;
  } else {
    bytes::atomic_write(file, [&](bytes::OutputFile& output) { output.write(std::as_bytes(std::span(text))); });
  }
}

}  // namespace dba::cli
