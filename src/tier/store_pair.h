// StorePair: two stores as one: a near one, which is asked first, and a far one, which is asked for what the near one lacks. Both are offered
// everything, and what came from the far one goes to the near one. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tier/buffers.h"
#include "tier/store.h"

namespace coppice::tier {

class StorePair final : public Store {
 public:
  /// `far_name`: in off_because. `copies`: where the second one's copies come from; none is free: it gets none. They outlive it.
  StorePair(std::unique_ptr<Store> near, std::unique_ptr<Store> far, std::string far_name,
            std::shared_ptr<Buffers> copies);

  void find(std::vector<Name> names, Found done) override;
  void load(const Name& name, Buffer into, Loaded done) override;
  bool offer(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  bool is_at(Place place) const override { return near_->is_at(place) || far_->is_at(place); }
  /// Sums, but for `pieces` and `bytes`: the near one's. `on`: both are.
  Counters counters() const override;
  void stop(Clock::time_point until) override;

 private:
  Buffer copy_of(const Buffer& piece);

  const std::unique_ptr<Store> near_, far_;
  const std::string far_name_;
  const std::shared_ptr<Buffers> copies_;
};

}  // namespace coppice::tier
