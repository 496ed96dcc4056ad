// RecordingObserver: a StoreObserver that remembers what it is told, and what is wrong about it. Thread safe.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "check/mutex.h"
#include "tier/store_observer.h"

namespace coppice::test {

class RecordingObserver final : public tier::StoreObserver {
 public:
  void entered(tier::StoreKind place, const tier::Name& name, const tier::PieceHead& head) noexcept override {
    const check::Lock lock(mutex_);
    if (!held_.emplace(std::tuple(place, name), std::vector(head.origin.begin(), head.origin.end())).second)
      wrong_ = "a piece entered twice";
    inside_[name] = head.name;
  }
  void left(tier::StoreKind place, const tier::Name& name) noexcept override {
    const check::Lock lock(mutex_);
    if (held_.erase({place, name}) == 0) wrong_ = "a piece left that was not there";
  }
  void emptied(tier::StoreKind place) noexcept override {
    const check::Lock lock(mutex_);
    std::erase_if(held_, [&](const auto& each) { return std::get<0>(each.first) == place; });
  }

  bool has(tier::StoreKind place, const tier::Name& name) const {
    const check::Lock lock(mutex_);
    return held_.contains({place, name});
  }
  /// What the piece with this name outside says that its name is.
  tier::Name inside(const tier::Name& name) const {
    const check::Lock lock(mutex_);
    const auto found = inside_.find(name);
    return found == inside_.end() ? tier::Name() : found->second;
  }
  std::vector<std::byte> origin(tier::StoreKind place, const tier::Name& name) const {
    const check::Lock lock(mutex_);
    const auto found = held_.find({place, name});
    return found == held_.end() ? std::vector<std::byte>() : found->second;
  }
  std::size_t size() const {
    const check::Lock lock(mutex_);
    return held_.size();
  }
  /// Empty: nothing.
  std::string wrong() const {
    const check::Lock lock(mutex_);
    return wrong_;
  }

 private:
  mutable check::Mutex mutex_;
  std::map<std::tuple<tier::StoreKind, tier::Name>, std::vector<std::byte>> held_ COPPICE_GUARDED_BY(mutex_);
  std::map<tier::Name, tier::Name> inside_ COPPICE_GUARDED_BY(mutex_);
  std::string wrong_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::test
