// HostStore: pieces stay in the buffers in which they come.
#include "tier/host_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "support/recording_observer.h"
#include "tier/piece.h"

namespace coppice::tier {
namespace {

constexpr std::size_t kPayload = 500;

Name name_of(int i, int model = 0, int space = 0) {
  Name name;
  name.model[0] = static_cast<std::uint8_t>(model);
  name.space[0] = static_cast<std::uint8_t>(space);
  name.piece[0] = static_cast<std::uint8_t>(i);
  return name;
}

class HostStoreTest : public testing::Test {
 protected:
  /// origin: in bytes.
  bool offer(const Name& name, std::size_t origin = 0) {
    Buffer buffer = buffers_.take();
    if (!buffer) return false;
    buffer.set_size(piece_size(0, 0, kPayload, origin));
    const std::vector<std::byte> bytes(origin, std::byte{7});
    std::ranges::fill(begin_piece(buffer.bytes(), name, {}, {}, kPayload, bytes),
                      static_cast<std::byte>(name.piece[0]));
    return store_->offer(name, std::move(buffer));
  }
  void settle() const {
    while (store_->counters().pending > 0) std::this_thread::yield();
  }
  bool holds(const Name& name) {
    const auto held = std::make_shared<std::promise<bool>>();  // the store's thread may have it for longer
    store_->find({name}, [held](const std::vector<bool>& found) { held->set_value(found[0]); });
    return held->get_future().get();
  }
  /// The piece; none: a miss. sound: what is told to the store.
  Buffer load(const Name& name, bool sound = true) {
    const auto came = std::make_shared<std::promise<Buffer>>();
    store_->load(name, loads_.take(), [came, sound](Buffer got) {
      came->set_value(std::move(got));
      return sound;
    });
    return came->get_future().get();
  }

  Buffers buffers_{8, 1000}, loads_{2, 1000};
  std::optional<HostStore> store_{std::in_place, 4};
};

TEST_F(HostStoreTest, GivesTheVeryMemoryThatItWasGivenAndKeepsIt) {
  Buffer buffer = buffers_.take();
  std::byte* const memory = buffer.memory().data();
  buffer.set_size(piece_size(0, 0, kPayload));
  begin_piece(buffer.bytes(), name_of(1), {}, {}, kPayload);
  ASSERT_TRUE(store_->offer(name_of(1), std::move(buffer)));
  settle();
  EXPECT_TRUE(holds(name_of(1)));
  EXPECT_FALSE(holds(name_of(2)));
  {
    const Buffer one = load(name_of(1)), other = load(name_of(1));
    EXPECT_EQ(one.memory().data(), memory);
    EXPECT_EQ(other.memory().data(), memory);
    EXPECT_TRUE(open_piece(one.bytes(), nullptr).has_value()) << "it is sealed";
    EXPECT_EQ(loads_.free(), loads_.count()) << "what it was to come into is free again";
    store_->forget({});
    EXPECT_FALSE(holds(name_of(1)));
    EXPECT_EQ(buffers_.free(), 7U) << "whoever has it has it";
    EXPECT_TRUE(open_piece(other.bytes(), nullptr).has_value());
  }
  EXPECT_EQ(buffers_.free(), 8U);
  EXPECT_EQ(load(name_of(1)).size(), 0U);
  EXPECT_EQ(store_->counters().loads, 2);
  EXPECT_EQ(store_->counters().load_misses, 1);
}

// Sums of all that comes and goes took longer than a GPU's bus.
TEST_F(HostStoreTest, ReadsNoPayload) {
  ASSERT_TRUE(offer(name_of(1)));
  settle();
  const Buffer piece = load(name_of(1));
  piece.bytes().back() ^= std::byte{1};
  EXPECT_TRUE(open_piece(piece.bytes(), nullptr).has_value());
  piece.bytes().front() ^= std::byte{1};
  EXPECT_FALSE(open_piece(piece.bytes(), nullptr).has_value());
}

TEST_F(HostStoreTest, TheLeastRecentlyUsedGoesForRoom) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(offer(name_of(i)));
    settle();
  }
  EXPECT_GT(load(name_of(0)).size(), 0U);
  EXPECT_TRUE(offer(name_of(1))) << "held already: counts as used";
  for (int i = 4; i < 6; ++i) {
    ASSERT_TRUE(offer(name_of(i)));
    settle();
  }
  std::vector<bool> held;
  for (int i = 0; i < 6; ++i) held.push_back(holds(name_of(i)));
  EXPECT_EQ(held, (std::vector<bool>{true, true, false, false, true, true}));
  EXPECT_EQ(store_->counters().evicted, 2);
  EXPECT_EQ(store_->counters().pieces, 4);
  EXPECT_EQ(buffers_.free(), 4U);
}

TEST_F(HostStoreTest, TellsWhatItHolds) {
  test::RecordingObserver observer;
  ASSERT_TRUE(offer(name_of(0), 40));
  settle();
  store_->observe(observer, name_of(0).model);
  EXPECT_TRUE(observer.has(StoreKind::kHost, name_of(0))) << "also what came before";
  EXPECT_EQ(observer.origin(StoreKind::kHost, name_of(0)), std::vector<std::byte>(40, std::byte{7}));
  ASSERT_TRUE(offer(name_of(1)));         // without an origin
  ASSERT_TRUE(offer(name_of(2, 1), 40));  // another model's
  settle();
  EXPECT_EQ(observer.size(), 1U);
  for (int i = 3; i < 6; ++i) {
    ASSERT_TRUE(offer(name_of(i), 40));
    settle();
  }
  EXPECT_FALSE(observer.has(StoreKind::kHost, name_of(0))) << "it went for room";
  EXPECT_EQ(observer.size(), 3U);
  EXPECT_GT(load(name_of(4), /*sound=*/false).size(), 0U);
  while (store_->counters().damaged == 0) std::this_thread::yield();
  EXPECT_FALSE(observer.has(StoreKind::kHost, name_of(4))) << "it was damaged";
  store_->forget({});
  EXPECT_EQ(observer.size(), 0U);
  EXPECT_EQ(observer.wrong(), "");
}

TEST_F(HostStoreTest, ForgetsOfAModelAndOfASpaceAlsoWhatIsUnderWay) {
  for (int i = 0; i < 2; ++i) {
    for (int space = 0; space < 2; ++space) ASSERT_TRUE(offer(name_of(i + 2 * space, i, space)));
  }
  Which which;
  which.model = name_of(0, 1).model;
  store_->forget(which);  // perhaps before all are sealed
  settle();
  EXPECT_TRUE(holds(name_of(0, 0, 0)) && holds(name_of(2, 0, 1)));
  EXPECT_FALSE(holds(name_of(1, 1, 0)) || holds(name_of(3, 1, 1)));
  which = {};
  which.space = name_of(0, 0, 1).space;
  store_->forget(which);
  EXPECT_TRUE(holds(name_of(0, 0, 0)));
  EXPECT_FALSE(holds(name_of(2, 0, 1)));
  which = {};
  which.kind = StoreKind::kDisk;
  store_->forget(which);
  EXPECT_TRUE(holds(name_of(0, 0, 0)));
}

TEST_F(HostStoreTest, WhatDoesNotOpenIsPutAside) {
  ASSERT_TRUE(offer(name_of(1)));
  settle();
  EXPECT_GT(load(name_of(1), /*sound=*/false).size(), 0U);
  while (store_->counters().damaged == 0) std::this_thread::yield();
  EXPECT_FALSE(holds(name_of(1)));
  EXPECT_EQ(buffers_.free(), 8U);
}

TEST_F(HostStoreTest, AtItsEndAllIsAnsweredAndAllMemoryIsFree) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(offer(name_of(i)));
  store_->stop(Clock::now());
  EXPECT_EQ(buffers_.free(), 8U);
  EXPECT_FALSE(offer(name_of(5)));
  EXPECT_EQ(load(name_of(0)).size(), 0U);
  EXPECT_FALSE(holds(name_of(0)));
  EXPECT_FALSE(store_->counters().on);
}

TEST_F(HostStoreTest, ManyThreadsFindEachPieceAsItWasGiven) {
  std::atomic<int> wrong = 0, hits = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      Buffers loads(1, 1000);
      for (int i = 0; i < 2000; ++i) {
        const Name name = name_of((i * 7 + t) % 6);
        if (i % 3 == 0) offer(name);
        std::promise<void> done;
        store_->load(name, loads.take(), [&](Buffer got) {
          const auto piece = open_piece(got.bytes(), &name);
          const auto same = [&](std::byte byte) { return byte == static_cast<std::byte>(name.piece[0]); };
          if (got.size() > 0) ++(piece && std::ranges::all_of(piece->payload, same) ? hits : wrong);
          got = {};  // its home may go when this thread is told
          done.set_value();
          return true;
        });
        done.get_future().wait();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
}

}  // namespace
}  // namespace coppice::tier
