#include "tier/store_pair.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

namespace coppice::tier {

StorePair::StorePair(std::unique_ptr<Store> near, std::unique_ptr<Store> far, std::string far_name,
                     std::shared_ptr<Buffers> copies)
    : near_(std::move(near)), far_(std::move(far)), far_name_(std::move(far_name)), copies_(std::move(copies)) {}

// One that is off is not asked: what the near one holds waits for nobody.
void StorePair::find(std::vector<Name> names, Found done) {
  std::vector<Name> same = names;
  near_->find(std::move(same),
              [this, names = std::move(names), done = std::move(done)](std::vector<bool> held) mutable {
                std::vector<Name> rest;
                for (std::size_t i = 0; i < names.size(); ++i) {
                  if (!held[i]) rest.push_back(names[i]);
                }
                if (rest.empty() || !far_->counters().on) return done(std::move(held));
                far_->find(std::move(rest),
                           [held = std::move(held), done = std::move(done)](const std::vector<bool>& more) mutable {
                             auto next = more.begin();
                             for (std::size_t i = 0; i < held.size(); ++i) {
                               if (!held[i]) held[i] = *next++;
                             }
                             done(std::move(held));
                           });
              });
}

void StorePair::load(const Name& name, Buffer into, Loaded done) {
  near_->load(name, std::move(into), [this, name, done = std::move(done)](Buffer got) mutable {
    if (got.size() > 0) return done(std::move(got));
    far_->load(name, std::move(got), [this, name, done = std::move(done)](Buffer came) mutable {
      Buffer copy = came.size() > 0 ? copy_of(came) : Buffer();
      const bool opens = done(std::move(came));
      if (copy && opens) near_->offer(name, std::move(copy));
      return opens;
    });
    return true;
  });
}

/// None: no buffer is free.
Buffer StorePair::copy_of(const Buffer& piece) {
  Buffer copy = copies_->take();
  if (!copy) return copy;
  copy.set_size(piece.size());
  std::ranges::copy(piece.bytes(), copy.bytes().begin());
  return copy;
}

bool StorePair::offer(const Name& name, Buffer piece) {
  bool is_taken = false;
  if (far_->counters().on) {
    if (Buffer copy = copy_of(piece)) is_taken = far_->offer(name, std::move(copy));
  }
  return near_->offer(name, std::move(piece)) || is_taken;
}

void StorePair::forget(const Which& which) {
  near_->forget(which);
  far_->forget(which);
}

Counters StorePair::counters() const {
  const Counters near = near_->counters(), far = far_->counters();
  Counters sum = near;
  sum.on = near.on && far.on;
  if (!far.on) sum.off_because += (near.on ? "" : "; ") + far_name_ + " " + far.off_because;
  sum.pending += far.pending;
  sum.found += far.found;
  sum.loads += far.loads;
  sum.load_misses -= std::min(sum.load_misses, far.loads);  // the near one's, which the far one had
  for (const auto part : {&Counters::load_bytes, &Counters::writes, &Counters::write_bytes, &Counters::dropped,
                          &Counters::evicted, &Counters::damaged, &Counters::io_errors, &Counters::switch_offs})
    sum.*part += far.*part;
  for (const auto part : {&Counters::load_seconds, &Counters::write_seconds}) sum.*part += far.*part;
  return sum;
}

// At the same time: both have until then.
void StorePair::stop(Clock::time_point until) {
  std::thread other([&] { near_->stop(until); });
  far_->stop(until);
  other.join();
}

}  // namespace coppice::tier
