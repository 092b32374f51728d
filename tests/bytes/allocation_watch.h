#pragma once

// Replaces the global operator new of the program, so that the largest single request can be asked for. Included by
// one source file of a program. Not inlined: g++ would take malloc and delete for a mismatched pair.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace dba::bytes {

inline std::atomic<std::size_t> largest_allocation{0};

inline void* watched_allocation(std::size_t size) {
  std::size_t largest = largest_allocation.load();
  while (size > largest && !largest_allocation.compare_exchange_weak(largest, size)) {
  }
  return std::malloc(size > 0 ? size : 1);
}

inline void* watched_allocation_or_throw(std::size_t size) {
  if (void* const memory = watched_allocation(size))
    return memory;
  throw std::bad_alloc();
}

}  // namespace dba::bytes

[[gnu::noinline]] void* operator new(std::size_t size) {
  return dba::bytes::watched_allocation_or_throw(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return dba::bytes::watched_allocation_or_throw(size);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return dba::bytes::watched_allocation(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return dba::bytes::watched_allocation(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
