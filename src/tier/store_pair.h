// StorePair: two stores as one: a near one, which is asked first, and a far one, which is asked for what the near one
// lacks. Both are offered everything, or the far one only what was used twice; and what came from the far one goes to
// the near one. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "tier/buffers.h"
#include "tier/store.h"

namespace coppice::tier {

class StorePair final : public Store {
 public:
  /// `copies`: where the second one's copies come from; none is free: it gets none. They outlive it.
  /// far_takes_once: it is offered, too, what was used once.
  StorePair(std::unique_ptr<Store> near, std::unique_ptr<Store> far, std::shared_ptr<Buffers> copies,
            bool far_takes_once = true);

  void find(std::vector<Name> names, Found done) override;
  void load(const Name& name, Buffer into, Loaded done) override;
  bool offer(const Name& name, Buffer piece) override;
  bool offer_once(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  void observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model) override {
    near_->observe(observer, model);
    far_->observe(observer, model);
  }
  bool is_at(StoreKind place) const override { return near_->is_at(place) || far_->is_at(place); }
  std::vector<Counters> places() const override;
  void stop(Clock::time_point until) override;

 private:
  bool far_is_on() const;
  Buffer copy_of(const Buffer& piece);

  const std::unique_ptr<Store> near_, far_;
  const std::shared_ptr<Buffers> copies_;
  const bool far_takes_once_;
};

}  // namespace coppice::tier
