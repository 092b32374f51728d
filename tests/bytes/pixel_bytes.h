#pragma once

#include <string>

namespace dba::data {

/// A record of CIFAR's size: a label, then 32 × 32 pixels of one grey value.
inline std::string grey_record(char label, unsigned char value) {
  return std::string(1, label) + std::string(1024, static_cast<char>(value));
}

/// The same of one colour.
inline std::string colour_record(char label, unsigned char red, unsigned char green, unsigned char blue) {
  return std::string(1, label) + std::string(1024, static_cast<char>(red)) +
         std::string(1024, static_cast<char>(green)) + std::string(1024, static_cast<char>(blue));
}

}  // namespace dba::data
