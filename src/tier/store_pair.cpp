#include "tier/store_pair.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <thread>
#include <utility>

namespace coppice::tier {

StorePair::StorePair(std::unique_ptr<Store> near, std::unique_ptr<Store> far, std::shared_ptr<Buffers> copies,
                     bool far_takes_once)
    : near_(std::move(near)), far_(std::move(far)), copies_(std::move(copies)), far_takes_once_(far_takes_once) {}

bool StorePair::far_is_on() const {
  return std::ranges::any_of(far_->places(), &Counters::on);
}

// One that is off is not asked: what the near one holds waits for nobody.
void StorePair::find(std::vector<Name> names, Found done) {
  std::vector<Name> same = names;
  near_->find(std::move(same),
              [this, names = std::move(names), done = std::move(done)](std::vector<bool> held) mutable {
                std::vector<Name> rest;
                for (std::size_t i = 0; i < names.size(); ++i) {
                  if (!held[i]) rest.push_back(names[i]);
                }
                if (rest.empty() || !far_is_on()) return done(std::move(held));
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
  if (far_is_on()) {
    if (Buffer copy = copy_of(piece)) is_taken = far_->offer(name, std::move(copy));
  }
  return near_->offer(name, std::move(piece)) || is_taken;
}

bool StorePair::offer_once(const Name& name, Buffer piece) {
  return far_takes_once_ ? offer(name, std::move(piece)) : near_->offer_once(name, std::move(piece));
}

void StorePair::forget(const Which& which) {
  near_->forget(which);
  far_->forget(which);
}

std::vector<Counters> StorePair::places() const {
  std::vector<Counters> places = near_->places();
  std::ranges::copy(far_->places(), std::back_inserter(places));
  return places;
}

// At the same time: both have until then.
void StorePair::stop(Clock::time_point until) {
  std::thread other([&] { near_->stop(until); });
  far_->stop(until);
  other.join();
}

}  // namespace coppice::tier
