// StorePair over two stores that are maps.
#include "tier/store_pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace coppice::test {
namespace {

using tier::Buffer;
using tier::Name;

class MapStore final : public tier::Store {
 public:
  void find(std::vector<Name> names, Found done) override {
    asked += std::ssize(names);
    std::vector<bool> held;
    for (const Name& name : names) held.push_back(pieces.contains(name));
    done(std::move(held));
  }
  void load(const Name& name, Buffer into, Loaded done) override {
    into.set_size(0);
    if (const auto found = pieces.find(name); found != pieces.end()) {
      into.set_size(found->second.size());
      std::ranges::copy(found->second, into.bytes().begin());
    }
    ++(into.size() > 0 ? sums.loads : sums.load_misses);
    done(std::move(into));
  }
  bool offer(const Name& name, Buffer piece) override {
    return takes && pieces.emplace(name, std::vector(piece.bytes().begin(), piece.bytes().end())).second;
  }
  void forget(const tier::Which&) override { pieces.clear(); }
  bool is_at(tier::StoreKind place) const override { return place == at; }
  std::vector<tier::Counters> places() const override {
    tier::Counters counters = sums;
    counters.kind = at;
    counters.pieces = std::ssize(pieces);
    return {counters};
  }
  void stop(tier::Clock::time_point) override { stopped = true; }

  std::map<Name, std::vector<std::byte>> pieces;
  tier::Counters sums{.on = true};
  std::ptrdiff_t asked = 0;
  bool takes = true, stopped = false;
  tier::StoreKind at = tier::StoreKind::kDisk;
};

class StorePairTest : public testing::Test {
 protected:
  static Name name(int i) {
    Name name;
    name.piece[0] = static_cast<std::uint8_t>(i);
    return name;
  }
  Buffer piece(int i) {
    Buffer buffer = buffers_->take();
    buffer.set_size(3);
    std::ranges::fill(buffer.bytes(), static_cast<std::byte>(i));
    return buffer;
  }
  std::vector<bool> held(std::vector<Name> names) {
    std::vector<bool> held;
    pair_.find(std::move(names), [&](std::vector<bool> found) { held = std::move(found); });
    return held;
  }
  /// Its first byte; -1: a miss.
  int load(int i) {
    int first = -2;
    pair_.load(name(i), buffers_->take(), [&](const Buffer& got) {
      first = got.size() > 0 ? static_cast<int>(got.bytes()[0]) : -1;
      return true;
    });
    return first;
  }

  std::shared_ptr<tier::Buffers> buffers_ = std::make_shared<tier::Buffers>(2, 100);
  MapStore *near_ = new MapStore, *far_ = new MapStore;
  tier::StorePair pair_{std::unique_ptr<tier::Store>(near_), std::unique_ptr<tier::Store>(far_), buffers_};
};

TEST_F(StorePairTest, TheFarOneIsAskedForWhatTheNearOneLacks) {
  for (const int i : {1, 3}) near_->pieces[name(i)] = {std::byte{10}};
  for (const int i : {2, 3}) far_->pieces[name(i)] = {std::byte{20}};
  EXPECT_EQ(held({name(1), name(2), name(3), name(4)}), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(far_->asked, 2);
  EXPECT_EQ(held({name(1), name(3)}), (std::vector<bool>{true, true}));
  EXPECT_EQ(far_->asked, 2);
  EXPECT_EQ(load(1), 10);
  EXPECT_EQ(load(2), 20);
  EXPECT_EQ(load(3), 10);
  EXPECT_EQ(load(4), -1);
  EXPECT_EQ(near_->pieces.at(name(2)), far_->pieces.at(name(2)));
  far_->pieces[name(5)] = {std::byte{1}};
  pair_.load(name(5), buffers_->take(), [](const Buffer&) { return false; });
  EXPECT_FALSE(near_->pieces.contains(name(5)));  // it doesn't open
  far_->at = tier::StoreKind::kRedis;
  const std::vector<tier::Counters> places = pair_.places();
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[0].kind, tier::StoreKind::kDisk);
  EXPECT_EQ(places[0].loads, 2);
  EXPECT_EQ(places[0].load_misses, 3);
  EXPECT_EQ(places[0].pieces, 3);
  EXPECT_EQ(places[1].kind, tier::StoreKind::kRedis);
  EXPECT_EQ(places[1].loads, 2);
  EXPECT_EQ(places[1].load_misses, 1);
  EXPECT_EQ(places[1].pieces, 3);
}

TEST_F(StorePairTest, BothAreOfferedEverythingWhileThereIsABufferForACopy) {
  EXPECT_TRUE(pair_.offer(name(1), piece(7)));
  EXPECT_EQ(near_->pieces.at(name(1)), far_->pieces.at(name(1)));
  EXPECT_EQ(near_->pieces.at(name(1)), std::vector(3, std::byte{7}));
  {
    const Buffer other = buffers_->take();
    EXPECT_TRUE(pair_.offer(name(2), piece(8)));
  }
  EXPECT_TRUE(near_->pieces.contains(name(2)) && !far_->pieces.contains(name(2)));
  near_->takes = false;
  EXPECT_TRUE(pair_.offer(name(3), piece(9)));
  far_->takes = false;
  EXPECT_FALSE(pair_.offer(name(4), piece(9)));
  EXPECT_EQ(buffers_->free(), 2U);
}

TEST_F(StorePairTest, TheFarOneIsSparedWhatWasUsedOnce) {
  EXPECT_TRUE(pair_.offer_once(name(1), piece(7)));
  EXPECT_TRUE(near_->pieces.contains(name(1)) && far_->pieces.contains(name(1))) << "it takes all";
  MapStore *const near = new MapStore, *const far = new MapStore;
  tier::StorePair pair(std::unique_ptr<tier::Store>(near), std::unique_ptr<tier::Store>(far), buffers_,
                       /*far_takes_once=*/false);
  EXPECT_TRUE(pair.offer_once(name(1), piece(7)));
  EXPECT_TRUE(near->pieces.contains(name(1)) && far->pieces.empty());
  EXPECT_TRUE(pair.offer(name(2), piece(8)));
  EXPECT_TRUE(far->pieces.contains(name(2)));
}

TEST_F(StorePairTest, AFarOneThatIsOffHoldsUpNothing) {
  near_->pieces[name(1)] = {std::byte{10}};
  far_->sums.on = false;
  EXPECT_EQ(held({name(1), name(2)}), (std::vector<bool>{true, false}));
  EXPECT_EQ(far_->asked, 0);
  EXPECT_TRUE(pair_.offer(name(5), piece(1)));
  EXPECT_TRUE(far_->pieces.empty());
}

TEST_F(StorePairTest, BothForgetAndBothStop) {
  EXPECT_FALSE(pair_.is_at(tier::StoreKind::kRedis));
  far_->at = tier::StoreKind::kRedis;
  EXPECT_TRUE(pair_.is_at(tier::StoreKind::kDisk) && pair_.is_at(tier::StoreKind::kRedis));
  EXPECT_TRUE(pair_.offer(name(1), piece(7)));
  pair_.forget({});
  EXPECT_TRUE(near_->pieces.empty() && far_->pieces.empty());
  pair_.stop(tier::Clock::now());
  EXPECT_TRUE(near_->stopped && far_->stopped);
}

}  // namespace
}  // namespace coppice::test
