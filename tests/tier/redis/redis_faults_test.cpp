// A server of which nothing can be relied on: answers that are cut, damaged, doubled, late or another command's.
// Whatever comes, each call is answered once and no piece opens that isn't what was kept under its name. Which fault
// comes when is drawn from a seed; who of the store's threads asks first is the system's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "support/dice.h"
#include "tier/disk/disk_fixture.h"
#include "tier/redis/fake_redis.h"
#include "tier/redis/redis_store.h"

namespace coppice::test {
namespace {

using std::chrono::milliseconds;

constexpr int kNames = 40, kRounds = 30, kCalls = 300;

enum Fault { kCut, kFlipped, kDoubled, kInserted, kAnothers, kError, kLate, kHuge, kFaults };

/// Spoils one answer in so many.
class Meddler {
 public:
  explicit Meddler(std::uint64_t seed) : dice_(seed) {}

  bool operator()(std::string& reply) {
    const std::string whole = reply;
    const bool ends = dice_.below(40) == 0 && spoil(reply);
    if (dice_.below(4) == 0) another_ = whole;
    return ends;
  }
  const std::array<std::atomic<int>, kFaults>& met() const { return met_; }

 private:
  bool spoil(std::string& reply) {
    const auto fault = static_cast<Fault>(next_++ % kFaults);
    const auto at = static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(reply.size())));
    ++met_[fault];
    switch (fault) {
      case kCut:
        reply.resize(at);
        return true;
      case kFlipped:
        reply[at] = static_cast<char>(reply[at] ^ 1 << dice_.below(8));
        break;
      case kDoubled:
        reply += std::string(reply);
        break;
      case kInserted:
        reply.insert(at, static_cast<std::size_t>(dice_.between(1, 5)), static_cast<char>(dice_.below(256)));
        break;
      case kAnothers:
        reply = another_;
        break;
      case kError:
        reply = dice_.chance(50) ? "-LOADING Redis is loading the dataset in memory\r\n" : "-ERR something\r\n";
        break;
      case kLate:
        std::this_thread::sleep_for(milliseconds(dice_.below(30)));
        break;
      case kHuge:
        reply = "$" + std::to_string(dice_.below(1LL << 40)) + "\r\n" + reply;
        return true;
      case kFaults:
        break;
    }
    return false;
  }

  Dice dice_;
  int next_ = 0;
  std::string another_ = "+OK\r\n";
  std::array<std::atomic<int>, kFaults> met_{};
};

/// Whether these bytes are what fill_piece() made of this name.
bool is_whole(const tier::Buffer& got, const tier::Name& name, tier::Buffers& buffers) {
  tier::Buffer right = buffers.take();
  fill_piece(right, name, 10'000);
  return std::ranges::equal(got.bytes(), right.bytes());
}

std::unique_ptr<tier::RedisStore> connect(const FakeRedis& server) {
  tier::RedisOptions options{.address = {.host = "127.0.0.1", .port = server.port()}};
  auto store = std::make_unique<tier::RedisStore>(options, std::nullopt, [](const std::string&) {});
  while (!store->counters().on && store->counters().switch_offs == 0) std::this_thread::sleep_for(milliseconds(1));
  return store;
}

TEST(RedisFaults, NoFaultOfAServerIsMoreThanAMiss) {
  const char* const given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "COPPICE_SEED=" << seed << "\n";
  SCOPED_TRACE("COPPICE_SEED=" + std::to_string(seed));
  tier::Buffers buffers(64, 64 << 10), rights(2, 64 << 10);
  Meddler meddler(seed);  // outlives the server, whose thread may still be answering a store that has gone
  FakeRedis server;
  server.meddle = [&](std::string& reply) { return meddler(reply); };
  std::atomic<int> answers = 0, hits = 0, misses = 0, wrong = 0;
  int asked = 0, off = 0;
  for (int round = 0; round < kRounds; ++round) {
    Dice dice(seed + 1 + static_cast<std::uint64_t>(round));
    const auto store = connect(server);
    for (int k = 0; k < kCalls && store->counters().on; ++k) {
      const tier::Name name = name_of(static_cast<int>(dice.below(kNames)));
      tier::Buffer buffer = buffers.take();
      const auto what = dice.below(10);
      if (what == 0) {
        ++asked;
        store->find({name, name_of(1)}, [&](const std::vector<bool>& found) { answers += found.size() == 2 ? 1 : 0; });
      } else if (what < 4 && buffer) {
        fill_piece(buffer, name, 10'000);
        store->offer(name, std::move(buffer));
      } else if (buffer) {
        ++asked;
        store->load(name, std::move(buffer), [&, name](const tier::Buffer& got) {
          ++answers;
          const bool opens = got.size() > 0 && tier::open_piece(got.bytes(), &name).has_value();
          (opens ? hits : misses) += 1;
          if (opens && !is_whole(got, name, rights)) ++wrong;
          return opens;
        });
      }
      if (dice.chance(30)) std::this_thread::sleep_for(milliseconds(1));
    }
    off += store->counters().on ? 0 : 1;
  }
  EXPECT_EQ(answers, asked);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, kRounds);
  EXPECT_GT(misses, kRounds);
  EXPECT_GT(off, kRounds / 4);
  for (int fault = 0; fault < kFaults; ++fault) EXPECT_GT(meddler.met()[static_cast<std::size_t>(fault)], 2) << fault;
  EXPECT_EQ(buffers.free(), buffers.count());
  std::cout << asked << " calls, " << hits << " hits, " << misses << " misses, off " << off << " times of " << kRounds
            << "\n";
}

}  // namespace
}  // namespace coppice::test
