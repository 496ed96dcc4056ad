// TidyUp: stands before a large body is parsed, and gives its memory back afterwards.
//
// What is made of a body (values, texts, tokens) takes several times its size. glibc keeps what is freed for the thread that
// freed it: a few large bodies, and the process holds a hundred MiB for good.
#pragma once

#include <cstddef>
#ifdef __linux__
#include <malloc.h>
#endif

namespace coppice::server {

class TidyUp {
 public:
  explicit TidyUp(std::size_t body_bytes) : large_(body_bytes >= kLargeBody) {}
  /// Takes about a millisecond, for which other threads may wait to allocate: nothing beside what parsing took.
  ~TidyUp() {
#ifdef __GLIBC__
    if (large_) malloc_trim(0);
#endif
  }
  TidyUp(const TidyUp&) = delete;
  TidyUp& operator=(const TidyUp&) = delete;

 private:
  static constexpr std::size_t kLargeBody = std::size_t{256} << 10;
  [[maybe_unused]] bool large_;
};

}  // namespace coppice::server
