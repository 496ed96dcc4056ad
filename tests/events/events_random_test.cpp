// What routers are told is what the cache has: over 100,000 operations of the model-based random test, a consumer that misses batches, asks for them again,
// and falls behind. COPPICE_SEED=n replays a run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "events/change_feed.h"
#include "events/encode.h"
#include "events/replay_log.h"
#include "support/kv_random_driver.h"

namespace coppice::events {
namespace {

using nlohmann::json;

using Blocks = std::map<std::uint64_t, std::vector<std::int32_t>>;  ///< tokens of each, by its name

/// A router: it knows what it was told.
class Consumer {
 public:
  /// Returns what is wrong about the batch.
  std::string read(const std::string& batch) {
    for (const json& event : json::from_msgpack(batch)[1]) {
      if (std::string why = read(event); !why.empty()) return why + ": " + event.dump();
    }
    return "";
  }
  const Blocks& blocks() const { return blocks_; }

 private:
  std::string read(const json& event) {
    if (event["type"] == "AllBlocksCleared") {
      blocks_.clear();
      return "";
    }
    if (event["type"] == "BlockRemoved") {
      for (const std::uint64_t hash : event["block_hashes"])
        if (blocks_.erase(hash) == 0) return "a block left that was not there";
      return "";
    }
    const json& parent = event["parent_block_hash"];
    if (!parent.is_null() && !blocks_.contains(parent.get<std::uint64_t>())) return "a block came before its parent";
    const auto tokens = event["token_ids"].get<std::vector<std::int32_t>>();
    const auto size = event["block_size"].get<std::size_t>();
    const auto hashes = event["block_hashes"].get<std::vector<std::uint64_t>>();
    if (tokens.size() != size * hashes.size()) return "tokens and blocks don't match";
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(i * size);
      std::vector<std::int32_t> own(begin, begin + static_cast<std::ptrdiff_t>(size));
      if (!blocks_.emplace(hashes[i], std::move(own)).second) return "a block came twice";
    }
    return "";
  }

  Blocks blocks_;
};

/// One episode's publisher and its consumer, in one thread. Outlives the cache, after which it is asked nothing.
class Watch {
 public:
  Watch(kv::Cache& cache, std::uint64_t seed) : cache_(cache), dice_(seed), names_(EventNames::Secret{42}) {
    cache_.observe(&feed_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  std::int64_t compared = 0, missed = 0, too_late = 0, overflows = 0;

  std::string after_operation() {
    overflows += feed_.wants_all() ? 1 : 0;
    cache_.tell_all();
    if (dice_() % 4 != 0) return "";  // the thread that sends sleeps
    for (std::string& batch :
         encode(feed_.take(), {.block_size = cache_.config().block_size, .names = names_, .most_blocks = 8}, 1)) {
      log_.add(std::make_shared<const std::string>(std::move(batch)));
      if (away_ == 0 && dice_() % 8 == 0) away_ = dice_() % 8 == 0 ? 2 * kKept : 1;
      if (away_ > 0) {  // ZeroMQ has thrown it away
        --away_;
        ++missed;
        continue;
      }
      if (std::string why = read_up_to_last(); !why.empty()) return why;
    }
    // A quiet moment. A consumer that has missed the last batch learns of it with the next one.
    if (next_ != log_.end() || feed_.wants_all()) return "";
    ++compared;
    return difference();
  }

 private:
  static constexpr std::size_t kKept = 4;

  /// The last batch came. What is missing before it is asked for again; if it is not there any more, all is.
  std::string read_up_to_last() {
    if (next_ < log_.first()) {
      ++too_late;
      feed_.want_all();
      consumer_ = {};
      is_lost_ = true;
      next_ = log_.end();
      return "";
    }
    for (; next_ < log_.end(); ++next_) {
      const std::string& batch = *log_.at(next_);
      const json events = json::from_msgpack(batch)[1];
      if (!events.empty() && events[0]["type"] == "AllBlocksCleared") is_lost_ = false;
      if (is_lost_) continue;
      if (std::string why = consumer_.read(batch); !why.empty()) return why;
    }
    return "";
  }

  std::string difference() const {
    if (is_lost_) return "";
    Blocks truth;
    for (const kv::BlockId id : cache_.storables().hottest(0)) {
      cache_.storables().at(id, false, [&](const kv::Storable& one) {
        std::vector<std::int32_t>& tokens = truth[names_.block(one.digest, *one.ns)];
        for (const std::int32_t bits : one.text.bits()) tokens.push_back(bits < 0 ? 0 : bits);
      });
    }
    if (truth.size() != consumer_.blocks().size())
      return fmt::format("the consumer has {} blocks, the cache {}", consumer_.blocks().size(), truth.size());
    return truth == consumer_.blocks() ? "" : "the consumer has other blocks than the cache";
  }

  kv::Cache& cache_;
  std::mt19937_64 dice_;
  EventNames names_;
  ChangeFeed feed_{20};
  ReplayLog log_{7, kKept, std::size_t{1} << 20};
  Consumer consumer_;
  bool is_lost_ = false;
  std::size_t away_ = 0;
  std::uint64_t next_ = 7;
};

TEST(EventsRandomTest, AConsumerKnowsWhatTheCacheHas) {
  const char* const text = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  fmt::print("COPPICE_SEED={}\n", seed);
  constexpr std::int64_t kOperations = test::kSanitized ? 30'000 : 120'000;
  std::int64_t operations = 0, compared = 0, missed = 0, too_late = 0, overflows = 0;
  std::shared_ptr<Watch> watch;
  const auto count = [&] {
    if (!watch) return;
    compared += watch->compared;
    missed += watch->missed;
    too_late += watch->too_late;
    overflows += watch->overflows;
  };
  std::uint64_t episode = seed;
  for (const test::Groups groups : test::kAllGroups) {
    const test::RandomReport report = test::run_random({.seed = seed,
                                                        .groups = groups,
                                                        .block_size = 8,
                                                        .operations = kOperations / std::ssize(test::kAllGroups),
                                                        .check_integrity = false,
                                                        .watch = [&](kv::Cache& cache) {
                                                          count();
                                                          watch = std::make_shared<Watch>(cache, ++episode);
                                                          return [mine = watch] { return mine->after_operation(); };
                                                        }});
    ASSERT_EQ(report.failure, "");
    operations += report.operations;
  }
  count();
  fmt::print("{} operations, {} comparisons, {} batches missed, {} times too late to ask for them, {} overflows\n",
             operations, compared, missed, too_late, overflows);
  EXPECT_GE(operations, kOperations);
  EXPECT_GE(compared, kOperations / 10);
  for (const std::int64_t met : {missed, too_late, overflows}) EXPECT_GE(met, 10);
}

}  // namespace
}  // namespace coppice::events
