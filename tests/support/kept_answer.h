// KeptAnswer: asks an engine, and keeps what it says. Thread safe only as far as engine::Asker must be: `answer` is to
// be read after `is_told`.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "engine/reply.h"

namespace coppice::testing {

template <class T>
class KeptAnswer final : public engine::Asker<T>, public std::enable_shared_from_this<KeptAnswer<T>> {
 public:
  static std::shared_ptr<KeptAnswer> make() { return std::make_shared<KeptAnswer>(); }
  engine::Reply<T> reply() { return engine::Reply<T>(this->shared_from_this()); }

  void told(std::shared_ptr<const T> news) noexcept override {
    answer = std::move(news);
    is_told = true;
  }
  bool waits() const noexcept override { return waiting; }

  std::shared_ptr<const T> answer;
  std::atomic<bool> is_told = false, waiting = true;
};

}  // namespace coppice::testing
