// DiskStore's threads on real files.
#include "tier/disk/disk_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "support/dice.h"
#include "support/recording_observer.h"
#include "support/sanitized.h"
#include "tier/disk/disk_fixture.h"

namespace coppice::test {
namespace {

using std::chrono::seconds;
using tier::DiskStore;

class DiskStoreTest : public DiskTest {
 protected:
  std::unique_ptr<DiskStore> start(const tier::DiskLimits& limits = {.bytes = 1 << 30, .free_share = 0}) {
    auto store = std::make_unique<DiskStore>(tier::make_real_files(path_), limits,
                                             DiskStore::Threads{.readers = 2, .writers = 2}, [](const std::string&) {});
    while (!store->counters().on) std::this_thread::yield();
    return store;
  }
  std::vector<bool> held(DiskStore& store, std::vector<tier::Name> names) {
    std::promise<std::vector<bool>> answer;
    store.find(std::move(names), [&](std::vector<bool> found) { answer.set_value(std::move(found)); });
    return answer.get_future().get();
  }
  /// Whether it came, and was what it should be.
  bool loads(DiskStore& store, const tier::Name& name, bool opens = true) {
    std::promise<bool> answer;
    auto answered = answer.get_future();
    store.load(name, buffers_.take(), [answer = std::move(answer), name, opens](const tier::Buffer& got) mutable {
      answer.set_value(got.size() > 0 && tier::open_piece(got.bytes(), &name).has_value());
      return opens;
    });
    return answered.get();
  }
  void wait_for_writes(DiskStore& store) {
    while (store.counters().pending > 0) std::this_thread::yield();
  }
};

TEST_F(DiskStoreTest, KeepsPiecesOverARestart) {
  for (int run = 0; run < 2; ++run) {
    const auto store = start();
    if (run == 0) {
      for (int i = 0; i < 20; ++i) {
        while (!store->offer(name_of(i), piece(name_of(i)))) std::this_thread::yield();
        wait_for_writes(*store);
      }
    }
    EXPECT_EQ(held(*store, {name_of(3), name_of(99), name_of(4)}), std::vector<bool>({true, false, true}));
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(loads(*store, name_of(i)));
    EXPECT_FALSE(loads(*store, name_of(99)));
    EXPECT_EQ(store->counters().damaged, 0);
    EXPECT_EQ(store->counters().io_errors, 0);
    EXPECT_EQ(store->counters().loads, 20);
    EXPECT_EQ(store->counters().load_misses, 1);
  }
}

TEST_F(DiskStoreTest, TellsWhatItHoldsOverARestartSealedOrNot) {
  const std::vector<std::byte> secret(tier::Seal::kLeastSecret, std::byte{5}), origin(40, std::byte{7});
  for (const std::optional<tier::Seal>& seal : {std::optional<tier::Seal>(), std::optional<tier::Seal>(secret)}) {
    const auto outside = [&](const tier::Name& name) { return seal ? seal->outside(name) : name; };
    for (int run = 0; run < 2; ++run) {
      DiskStore store(
          tier::make_real_files(path_), {.bytes = 1 << 30, .free_share = 0}, {.readers = 1, .writers = 1},
          [](const std::string&) {}, seal);
      while (!store.counters().on) std::this_thread::yield();
      RecordingObserver observer;
      store.observe(observer, name_of(0).model);
      const auto told = [&](int i) { return observer.has(tier::StoreKind::kDisk, outside(name_of(i))); };
      if (run == 0) {
        for (int i = 0; i < 4; ++i) {
          tier::Buffer buffer = buffers_.take();
          const std::span<const std::byte> of = i == 2 ? std::span<const std::byte>() : origin;
          buffer.set_size(tier::piece_size(0, 0, 10'000, of.size()));
          const tier::Name name = name_of(i, /*model=*/i == 3 ? 1 : 0);
          tier::begin_piece(buffer.bytes(), name, {}, "", 10'000, of);
          ASSERT_TRUE(store.offer(name, std::move(buffer)));
        }
        wait_for_writes(store);
      }
      const auto end = std::chrono::steady_clock::now() + seconds(60);
      while (observer.size() < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_TRUE(told(0) && told(1)) << run;
      EXPECT_EQ(observer.origin(tier::StoreKind::kDisk, outside(name_of(0))), origin);
      EXPECT_EQ(observer.inside(outside(name_of(0))), name_of(0));
      EXPECT_EQ(observer.size(), 2U) << "what has no origin, or is another model's, is not told";
      if (run == 0) continue;
      store.forget({});
      EXPECT_EQ(observer.size(), 0U);
      EXPECT_EQ(observer.wrong(), "");
    }
  }
}

// Whoever offers a piece has better things to do: a megabyte takes a tenth of a millisecond.
TEST_F(DiskStoreTest, PiecesAreSealedByItsThreads) {
  const auto store = start();
  tier::Buffer unsealed = piece(name_of(1));
  std::ranges::fill(unsealed.bytes().subspan(16, 4), std::byte{});  // the checksum
  ASSERT_TRUE(store->offer(name_of(1), std::move(unsealed)));
  wait_for_writes(*store);
  EXPECT_TRUE(loads(*store, name_of(1)));
}

TEST_F(DiskStoreTest, WithASecretNothingCanBeReadOrPassedOff) {
  const std::vector<std::byte> secret(32, std::byte{1}), other(32, std::byte{2});
  const auto begin = [&](const std::vector<std::byte>& of) {
    auto store = std::make_unique<DiskStore>(
        tier::make_real_files(path_), tier::DiskLimits{.bytes = 1 << 30, .free_share = 0}, DiskStore::Threads{},
        [](const std::string&) {}, tier::Seal(of));
    while (!store->counters().on) std::this_thread::yield();
    return store;
  };
  {
    const auto store = begin(secret);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(store->offer(name_of(i), piece(name_of(i))));
    wait_for_writes(*store);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(held(*store, {name_of(i)})[0] && loads(*store, name_of(i)));
  }
  EXPECT_FALSE(loads(*begin(other), name_of(0)));
  EXPECT_FALSE(loads(*start(), name_of(0)));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_ / "kv")) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 4U);
  std::filesystem::copy_file(files[0], files[1], std::filesystem::copy_options::overwrite_existing);
  const auto store = begin(secret);
  int n = 0;
  for (int i = 0; i < 4; ++i) n += loads(*store, name_of(i)) ? 1 : 0;
  EXPECT_EQ(n, 3);
  store->forget({.model = name_of(0).model});
  EXPECT_EQ(store->counters().pieces, 0);
}

TEST_F(DiskStoreTest, WhatDoesNotOpenIsAMissFromThenOn) {
  const auto store = start();
  ASSERT_TRUE(store->offer(name_of(1), piece(name_of(1))));
  wait_for_writes(*store);
  EXPECT_TRUE(loads(*store, name_of(1), false));
  while (held(*store, {name_of(1)})[0]) std::this_thread::yield();  // put aside behind the answer
  EXPECT_FALSE(loads(*store, name_of(1)));
  EXPECT_EQ(store->counters().damaged, 1);
}

TEST_F(DiskStoreTest, StopFinishesWhatItHasTimeFor) {
  {
    const auto store = start();
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(store->offer(name_of(i), piece(name_of(i))));
    store->stop(tier::Clock::now() + seconds(60));
    EXPECT_EQ(store->counters().writes, 6);
    EXPECT_FALSE(store->offer(name_of(7), piece(name_of(7))));
    EXPECT_EQ(held(*store, {name_of(1)}), std::vector<bool>({false}));
    EXPECT_FALSE(loads(*store, name_of(1)));
  }
  const auto store = start();
  EXPECT_EQ(store->counters().pieces, 6);
  store->forget({});
  EXPECT_EQ(held(*store, {name_of(1)}), std::vector<bool>({false}));
}

TEST_F(DiskStoreTest, WhatWasForgottenDoesNotComeBack) {
  {
    tier::Buffers buffers(300, 4096);
    const auto store = start();
    for (int i = 0; i < 300; ++i) {
      tier::Buffer small = buffers.take();
      fill_piece(small, name_of(i), 100);
      ASSERT_TRUE(store->offer(name_of(i), std::move(small)));
    }
    wait_for_writes(*store);
    store->forget({});
    store->stop(tier::Clock::now() + seconds(60));
  }
  EXPECT_EQ(start()->counters().pieces, 0);
}

TEST_F(DiskStoreTest, TheSecondServerGetsTheFolderWhenTheFirstEnds) {
  auto first = start();
  ASSERT_TRUE(first->offer(name_of(1), piece(name_of(1))));
  wait_for_writes(*first);
  std::vector<std::string> said;
  check::Mutex mutex;
  DiskStore second(tier::make_real_files(path_), {.bytes = 1 << 30, .free_share = 0}, {}, [&](const std::string& line) {
    const check::Lock lock(mutex);
    said.push_back(line);
  });
  while (second.counters().off_because != "is used by another server") std::this_thread::yield();
  EXPECT_FALSE(second.offer(name_of(2), piece(name_of(2))));
  first.reset();
  while (!second.counters().on) std::this_thread::yield();
  EXPECT_TRUE(loads(second, name_of(1)));
  const check::Lock lock(mutex);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0], path_.string() + " is used by another server. It is tried again each 5 s");
}

TEST_F(DiskStoreTest, EveryCallIsAnsweredOnceWhateverComesTogether) {
  const int n = kThreadSanitizer ? 2000 : 6000;
  std::atomic<int> finds = 0, loads = 0, wrong = 0, hits = 0;
  int asked_finds = 0, asked_loads = 0;
  tier::Buffers buffers(64, 64 << 10);
  Dice dice(1);
  {
    const std::uint64_t each = tier::disk_bytes(tier::piece_size(4, 5, 10'000));
    const auto store = start({.bytes = 40 * each, .free_share = 0});
    // On a machine that is busy it takes a while until the thread that writes, which is as nice as can be, has written
    // something.
    for (int k = 0; k < n || (hits == 0 && k < 100 * n); ++k) {
      const tier::Name name = name_of(static_cast<int>(dice.below(100)), static_cast<int>(dice.below(2)));
      tier::Buffer buffer = buffers.take();
      switch (dice.below(8)) {
        case 0:
          ++asked_finds;
          store->find({name, name_of(1)}, [&](const std::vector<bool>& found) { finds += found.size() == 2 ? 1 : 0; });
          break;
        case 1:
          if (k % 500 == 0) store->forget({.model = name.model});
          break;
        case 2:
        case 3:
        case 4:
          if (!buffer) break;
          fill_piece(buffer, name, 10'000);
          store->offer(name, std::move(buffer));
          break;
        default:
          if (!buffer) break;
          ++asked_loads;
          store->load(name, std::move(buffer), [&, name](tier::Buffer got) {
            ++loads;
            if (got.size() == 0) return false;
            ++hits;
            const bool opens = tier::open_piece(got.bytes(), &name).has_value();
            wrong += opens ? 0 : 1;
            return opens;
          });
      }
      if (dice.chance(2)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(finds, asked_finds);
  EXPECT_EQ(loads, asked_loads);
  EXPECT_GT(hits, 0);
  EXPECT_EQ(buffers.free(), buffers.count());
}

}  // namespace
}  // namespace coppice::test
