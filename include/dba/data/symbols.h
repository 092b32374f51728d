#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace dba::data {

/// How the symbols of a set lie in memory: each as symbol − first in `width` bytes, the CLS in front of a sequence and
/// the EOS behind it not at all.
struct SymbolLayout {
  std::uint8_t width = 4;  ///< 1, 2 or 4
  std::int32_t first = 0;  ///< the symbol that is stored as 0
  std::int32_t cls = -1;   ///< −1: sequences have none
  std::int32_t eos = -1;
};

/// The symbols of one sequence in the order a model sees them, CLS and EOS included; a view of memory that must outlive
/// it.
class SymbolSpan {
 public:
  using value_type = std::int32_t;

  SymbolSpan() = default;
  /// size: of the sequence, so that size less the CLS and EOS of the layout are stored.
  SymbolSpan(const std::byte* stored, std::size_t size, SymbolLayout layout)
      : stored_(stored), size_(size), layout_(layout) {}

  std::size_t size() const {
    return size_;
  }
  bool empty() const {
    return size_ == 0;
  }
  std::int32_t operator[](std::size_t i) const {
    if (layout_.cls >= 0 && i == 0)
      return layout_.cls;
    if (layout_.eos >= 0 && i + 1 == size_)
      return layout_.eos;
    return layout_.first + static_cast<std::int32_t>(content(i - (layout_.cls >= 0 ? 1 : 0)));
  }

  /// Writes size() symbols and returns the end of what was written.
  template <class Integer>
  Integer* copy(Integer* into) const {
    if (layout_.cls >= 0 && size_ > 0)
      *into++ = layout_.cls;
    switch (layout_.width) {
      case 1:
        into = copy_content<std::uint8_t>(into);
        break;
      case 2:
        into = copy_content<std::uint16_t>(into);
        break;
      default:
        into = copy_content<std::uint32_t>(into);
    }
    if (layout_.eos >= 0 && size_ > 0)
      *into++ = layout_.eos;
    return into;
  }

  class Iterator;
  Iterator begin() const;
  Iterator end() const;

 private:
  std::size_t stored_size() const {
    return size_ == 0 ? 0 : size_ - (layout_.cls >= 0 ? 1 : 0) - (layout_.eos >= 0 ? 1 : 0);
  }
  template <class Stored>
  Stored load(std::size_t i) const {
    Stored value;
    std::memcpy(&value, stored_ + i * sizeof value, sizeof value);
    return value;
  }
  std::uint32_t content(std::size_t i) const {
    return layout_.width == 1   ? load<std::uint8_t>(i)
           : layout_.width == 2 ? load<std::uint16_t>(i)
                                : load<std::uint32_t>(i);
  }
  template <class Stored, class Integer>
  Integer* copy_content(Integer* into) const {
    const std::size_t count = stored_size();
    for (std::size_t i = 0; i < count; ++i)
      into[i] = static_cast<Integer>(layout_.first + static_cast<std::int32_t>(load<Stored>(i)));
    return into + count;
  }

  const std::byte* stored_ = nullptr;
  std::size_t size_ = 0;
  SymbolLayout layout_;
};

class SymbolSpan::Iterator {
 public:
  using value_type = std::int32_t;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;
  using pointer = const std::int32_t*;
  using reference = std::int32_t;

  Iterator() = default;
  Iterator(const SymbolSpan& span, std::size_t place) : span_(span), place_(place) {}

  std::int32_t operator*() const {
    return span_[place_];
  }
  Iterator& operator++() {
    ++place_;
    return *this;
  }
  Iterator operator++(int) {
    Iterator before = *this;
    ++place_;
    return before;
  }
  bool operator==(const Iterator& other) const {
    return place_ == other.place_;
  }

 private:
  SymbolSpan span_;
  std::size_t place_ = 0;
};

inline SymbolSpan::Iterator SymbolSpan::begin() const {
  return {*this, 0};
}

inline SymbolSpan::Iterator SymbolSpan::end() const {
  return {*this, size_};
}

}  // namespace dba::data
