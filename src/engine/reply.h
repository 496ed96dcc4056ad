// Reply: where the answer to a question goes, which may be about something else than a request. Move only, and of one
// thread at a time.
//
// The asker is told once, whatever happens: by give(), or by the destructor that there is no answer. So whoever drops a
// question, for want of memory or because the engine ends, need not think of who waits for it.
#pragma once

#include <memory>
#include <utility>

namespace coppice::engine {

/// Who waits for a T. Both are called by any thread.
template <class T>
class Asker {
 public:
  virtual ~Asker() = default;
  /// Called once. Null: there is no answer. Takes no memory.
  virtual void told(std::shared_ptr<const T> answer) noexcept = 0;
  /// False: nobody waits any more.
  virtual bool waits() const noexcept = 0;
};

template <class T>
class Reply {
 public:
  Reply() = default;
  explicit Reply(std::shared_ptr<Asker<T>> asker) : asker_(std::move(asker)) {}
  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&& other) noexcept {
    Reply(std::move(other)).asker_.swap(asker_);
    return *this;
  }
  ~Reply() {
    if (asker_) asker_->told(nullptr);
  }

  bool wanted() const { return asker_ && asker_->waits(); }
  void give(std::shared_ptr<const T> answer) {
    if (const auto asker = std::exchange(asker_, nullptr)) asker->told(std::move(answer));
  }

 private:
  std::shared_ptr<Asker<T>> asker_;  ///< null: nobody asked, or it is told
};

}  // namespace coppice::engine
