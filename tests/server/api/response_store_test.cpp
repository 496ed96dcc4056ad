// What the store of responses keeps, for whom, and what goes when room is wanted.
#include "server/api/responses/response_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api/responses/response_archive.h"

namespace coppice::server {
namespace {

using Response = std::shared_ptr<const StoredResponse>;

constexpr std::size_t kKiB = 1024;

/// With an input of about so many bytes. Null: it was not stored.
Response put(ResponseStore& store, const std::string& id, std::size_t bytes = kKiB, const ResponseOwner& owner = {},
             const Response& previous = nullptr) {
  auto response = store.begin(owner, previous, {{.id = "in-" + id, .json = std::string(bytes, 'x')}});
  if (!response || !store.finish(response, id, "{}", {{.id = "out-" + id, .json = "{}"}})) return nullptr;
  return response;
}

bool has(ResponseStore& store, const std::string& id, const ResponseOwner& owner = {}) {
  return store.find(id, owner) != nullptr;
}

TEST(ResponseStoreTest, FindsNothingOfAnotherKeyOrSalt) {
  ResponseStore store(100 * kKiB);
  const ResponseOwner owner{"alice", "s"};
  put(store, "a", kKiB, owner);
  for (const ResponseOwner& other : {ResponseOwner{"bob", "s"}, ResponseOwner{"alice", ""}, ResponseOwner{"", "s"},
                                     ResponseOwner{"alices", ""}, ResponseOwner{}}) {
    EXPECT_FALSE(has(store, "a", other)) << other.tenant << other.salt;
    EXPECT_FALSE(store.remove("a", other)) << other.tenant << other.salt;
  }
  EXPECT_TRUE(has(store, "a", owner));
  EXPECT_TRUE(store.remove("a", owner));
  EXPECT_FALSE(has(store, "a", owner));
  EXPECT_FALSE(store.remove("a", owner));
  EXPECT_EQ(store.figures().bytes, 0U);
}

TEST(ResponseStoreTest, TurnsThatConversationsShareAreHeldOnce) {
  ResponseStore store(1024 * kKiB);
  const Response first = put(store, "1", 100 * kKiB);
  const Response second = put(store, "2", kKiB, {}, first), other = put(store, "3", kKiB, {}, first);
  std::string ids;
  for (const StoredResponse* turn : conversation(*second)) ids += turn->id;
  EXPECT_EQ(ids, "12");
  EXPECT_EQ(conversation(*other).size(), 2U);
  EXPECT_GT(store.figures().bytes, 102 * kKiB);
  EXPECT_LT(store.figures().bytes, 106 * kKiB);
}

TEST(ResponseStoreTest, WhatIsDeletedStaysForThoseThatStandOnIt) {
  ResponseStore store(1024 * kKiB);
  put(store, "2", kKiB, {}, put(store, "1", 100 * kKiB));
  EXPECT_TRUE(store.remove("1", {}));
  EXPECT_FALSE(has(store, "1"));
  ASSERT_TRUE(has(store, "2"));
  EXPECT_EQ(conversation(*store.find("2", {})).front()->id, "1");
  EXPECT_GT(store.figures().bytes, 100 * kKiB);
  EXPECT_TRUE(store.remove("2", {}));
  EXPECT_EQ(store.figures().bytes, 0U);
}

TEST(ResponseStoreTest, TheLeastRecentlyUsedGoesFirst) {
  ResponseStore store(10 * kKiB);
  for (const char* id : {"1", "2", "3"}) put(store, id, 2 * kKiB);
  EXPECT_TRUE(has(store, "1"));
  put(store, "4", 2 * kKiB);
  EXPECT_TRUE(has(store, "1") && !has(store, "2") && has(store, "3") && has(store, "4"));
  EXPECT_EQ(store.figures().evictions, 1);
  EXPECT_EQ(store.figures().responses, 3U);
}

/// Else what goes would free nothing, as long as others stand on it.
TEST(ResponseStoreTest, NoResponseGoesBeforeThoseThatStandOnIt) {
  ResponseStore store(20 * kKiB);
  const auto root = [&] { return store.find("root", {}); };
  put(store, "root", 2 * kKiB);
  put(store, "a", 2 * kKiB, {}, root());
  put(store, "b", 2 * kKiB, {}, root());
  put(store, "other", 2 * kKiB);
  EXPECT_TRUE(has(store, "a"));
  put(store, "new", 9 * kKiB);
  EXPECT_FALSE(has(store, "b")) << "it was used least recently";
  EXPECT_TRUE(has(store, "root") && has(store, "a") && has(store, "new"));
}

TEST(ResponseStoreTest, ATenantThatHoldsItsShareLosesNothing) {
  ResponseStore store(100 * kKiB);
  const ResponseOwner modest{"modest", ""}, greedy{"greedy", ""};
  for (int i = 0; i < 4; ++i) put(store, fmt::format("m{}", i), 10 * kKiB, modest);
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(put(store, fmt::format("g{}", i), kKiB, greedy)) << i;
    EXPECT_LE(store.figures().bytes, 100 * kKiB);
  }
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(has(store, fmt::format("m{}", i), modest)) << i;
  EXPECT_FALSE(has(store, "g0", greedy));
  EXPECT_TRUE(has(store, "g199", greedy));
}

TEST(ResponseStoreTest, WhatTheOthersDontUseIsForAll) {
  ResponseStore store(100 * kKiB);
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(put(store, fmt::format("a{}", i), 10 * kKiB, {"a", ""}));
  EXPECT_TRUE(has(store, "a0", {"a", ""}));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(put(store, fmt::format("b{}", i), 10 * kKiB, {"b", ""}));
  EXPECT_FALSE(has(store, "a1", {"a", ""})) << "beyond its share it gives way";
}

TEST(ResponseStoreTest, RunningRequestsCount) {
  ResponseStore store(100 * kKiB);
  put(store, "old", 30 * kKiB);
  auto running = store.begin({}, nullptr, {{.id = "i", .json = std::string(90 * kKiB, 'x')}});
  ASSERT_TRUE(running);
  EXPECT_FALSE(has(store, "old"));
  EXPECT_EQ(store.begin({}, nullptr, {{.id = "i", .json = std::string(20 * kKiB, 'x')}}), nullptr);
  EXPECT_GT(store.figures().bytes, 90 * kKiB);
  EXPECT_EQ(store.figures().responses, 0U);
  running = nullptr;  // cancelled
  EXPECT_EQ(store.figures().bytes, 0U);
}

TEST(ResponseStoreTest, WhatNeverFitsPushesNothingOut) {
  ResponseStore store(10 * kKiB);
  const Response small = put(store, "small");
  EXPECT_EQ(put(store, "large", 11 * kKiB), nullptr);
  const auto running = store.begin({}, nullptr, {});
  EXPECT_FALSE(store.finish(running, "long", std::string(11 * kKiB, 'x'), {}));
  const Response most = put(store, "most", 5 * kKiB, {}, small);
  EXPECT_EQ(put(store, "beyond", 5 * kKiB, {}, most), nullptr) << "with those that it stands on";
  EXPECT_TRUE(has(store, "small") && has(store, "most"));
  EXPECT_EQ(store.figures().evictions, 0);
}

TEST(ResponseStoreTest, ForgetsTenantsThatAreGone) {
  ResponseStore store(100 * kKiB);
  put(store, "a", kKiB, {"a", ""});
  put(store, "b", kKiB, {"b", ""});
  store.keep_tenants({"b"});
  EXPECT_FALSE(has(store, "a", {"a", ""}));
  EXPECT_TRUE(has(store, "b", {"b", ""}));
  put(store, "late", kKiB, {"a", ""});
  EXPECT_FALSE(has(store, "late", {"a", ""})) << "of a request that was under way";
}

TEST(ResponseStoreTest, LongConversationsAreFreedWithoutRecursion) {
  ResponseStore store(std::size_t{1} << 30);
  Response last;
  for (int i = 0; i < 200'000; ++i) last = store.begin({}, last, {});
  EXPECT_EQ(conversation(*last).size(), 200'000U);
  last = nullptr;
  EXPECT_EQ(store.figures().bytes, 0U);
}

/// Against a plain list of what was stored: only what may go goes.
TEST(ResponseStoreTest, RandomUse) {
  const char* const given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
  fmt::print("COPPICE_SEED={}\n", seed);
  std::mt19937_64 random(seed);
  const auto draw = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  constexpr std::size_t kBudget = 64 * kKiB;
  ResponseStore store(kBudget);
  struct Known {
    ResponseOwner owner;
    std::string previous;
  };
  std::map<std::string, Known> known;  // stored once and not deleted
  std::size_t modest_bytes = 0;        // of the tenant that keeps to its share and deletes nothing
  for (int i = 0; i < 3000; ++i) {
    const ResponseOwner owner{fmt::format("t{}", draw(4)), fmt::format("s{}", draw(2))};
    const bool modest = owner.tenant == "t0";
    auto it = known.begin();
    if (!known.empty()) std::advance(it, draw(known.size()));
    const bool own = !known.empty() && it->second.owner == owner;
    const Response found = known.empty() ? nullptr : store.find(it->first, owner);
    if (!own) EXPECT_EQ(found, nullptr);
    if (found && draw(4) == 0 && !modest) {
      EXPECT_TRUE(store.remove(it->first, owner));
      known.erase(it);
    } else {
      const std::size_t bytes = draw(3 * kKiB);
      if (modest && modest_bytes + bytes + 2 * kKiB > kBudget / 4) continue;
      const std::string id = std::to_string(i);
      const bool stored = put(store, id, bytes, owner, found) != nullptr;
      if (modest) modest_bytes += bytes + 2 * kKiB;
      EXPECT_TRUE(stored || !modest);
      if (stored) known[id] = {owner, found ? found->id : ""};
    }
    EXPECT_LE(store.figures().bytes, kBudget);
  }
  std::set<std::string> there;
  for (const auto& [id, what] : known) {
    if (has(store, id, what.owner)) there.insert(id);
    if (what.owner.tenant == "t0") EXPECT_TRUE(there.contains(id)) << id;
  }
  for (const std::string& id : there)
    if (known.contains(known[id].previous)) EXPECT_TRUE(there.contains(known[id].previous)) << id;
  EXPECT_EQ(there.size(), store.figures().responses);
  EXPECT_GT(store.figures().evictions, 100);
}

TEST(ResponseStoreTest, ManyThreads) {
  ResponseStore store(64 * kKiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      const ResponseOwner owner{fmt::format("t{}", t % 2), ""};
      std::string last;
      for (int i = 0; i < 500; ++i) {
        const std::string id = fmt::format("{}-{}", t, i);
        put(store, id, 200, owner, store.find(last, owner));
        if (i % 7 == 0) store.remove(last, owner);
        if (i % 50 == 0) EXPECT_LE(store.figures().bytes, 64 * kKiB + 4 * kKiB);  // of those under way in begin()
        last = i % 20 == 0 ? "" : id;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.figures().bytes, 64 * kKiB);
  store.keep_tenants({});
  EXPECT_EQ(store.figures().bytes, 0U);
}

/// As a file holds them between two servers.
std::size_t move_to(const ResponseStore& from, ResponseStore& to, const std::set<std::string>& tenants) {
  return restore(read_responses(write_responses(from)), tenants, to);
}

TEST(ResponseArchiveTest, HoldsWhatIsFoundAndWhatThatStandsOn) {
  ResponseStore before(1024 * kKiB), after(1024 * kKiB);
  const ResponseOwner alice{std::string("\xff\x00\n", 3), "s\n"}, bob{"b", ""};
  const Response first = put(before, "1", kKiB, alice), second = put(before, "2", kKiB, alice, first);
  put(before, "3", kKiB, alice, second);
  put(before, "4", kKiB, bob);
  put(before, "5", kKiB, alice);
  before.remove("2", alice);
  before.remove("5", alice);
  EXPECT_EQ(move_to(before, after, {alice.tenant, bob.tenant}), 3U);
  EXPECT_TRUE(has(after, "1", alice) && !has(after, "2", alice) && has(after, "3", alice) && has(after, "4", bob));
  EXPECT_FALSE(has(after, "3", bob) || has(after, "5", alice));
  std::string text;
  for (const StoredResponse* turn : conversation(*after.find("3", alice)))
    text += turn->id + turn->input[0].id + turn->output[0].json + turn->body;
  EXPECT_EQ(text, "1in-1{}{}2in-2{}{}3in-3{}{}");
  EXPECT_EQ(after.figures().bytes, before.figures().bytes);
  ResponseStore others(1024 * kKiB);
  EXPECT_EQ(move_to(before, others, {bob.tenant}), 1U);
}

TEST(ResponseArchiveTest, WhatHasNoRoomStaysAwayTheOldestFirst) {
  ResponseStore before(1024 * kKiB), after(20 * kKiB);
  for (int i = 0; i < 40; ++i) put(before, std::to_string(i), kKiB);
  has(before, "7");
  move_to(before, after, {""});
  EXPECT_TRUE(has(after, "7") && has(after, "39") && !has(after, "0") && !has(after, "8"));
  EXPECT_LE(after.figures().bytes, 20 * kKiB);
}

TEST(ResponseArchiveTest, WhatIsNoneHoldsNone) {
  ResponseStore store(1024 * kKiB);
  put(store, "1");
  const std::string text = write_responses(store);
  EXPECT_EQ(read_responses(text).size(), 1U);
  for (std::size_t n = 0; n < text.size(); ++n) EXPECT_TRUE(read_responses(text.substr(0, n)).empty());
  for (const char* other :
       {"coppice responses 2\nend\n", "coppice responses 1\n{}\nend\n", "coppice responses 1\n[\nend\n"})
    EXPECT_TRUE(read_responses(other).empty()) << other;
}

}  // namespace
}  // namespace coppice::server
