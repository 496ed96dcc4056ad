// What routers are told is what the cache has, and a folder behind it: over 100,000 operations of the model-based
// random test, a consumer that misses batches, asks for them again, and falls behind; servers that end and find the
// folder again. COPPICE_SEED=n replays a run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "events/change_feed.h"
#include "events/encode.h"
#include "events/replay_log.h"
#include "events/stored_blocks.h"
#include "kv/block_bytes.h"
#include "support/kv_random_driver.h"
#include "support/memory_files.h"
#include "tier/disk/disk_folder.h"
#include "tier/disk/piece_path.h"
#include "tier/piece.h"

namespace coppice::events {
namespace {

using nlohmann::json;

using Blocks = std::map<std::uint64_t, std::vector<std::int32_t>>;  ///< tokens of each, by its name
using Media = std::map<std::string, Blocks>;

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
  const Media& media() const { return media_; }

 private:
  std::string read(const json& event) {
    if (event["type"] == "AllBlocksCleared") {
      media_.clear();
      return "";
    }
    Blocks& blocks = media_[event["medium"]];
    if (event["type"] == "BlockRemoved") {
      for (const std::uint64_t hash : event["block_hashes"])
        if (blocks.erase(hash) == 0) return "a block left that was not there";
      return "";
    }
    const json& parent = event["parent_block_hash"];
    if (event["medium"] == "GPU" && !parent.is_null() && !blocks.contains(parent.get<std::uint64_t>()))
      return "a block came before its parent";
    const auto tokens = event["token_ids"].get<std::vector<std::int32_t>>();
    const auto size = event["block_size"].get<std::size_t>();
    const auto hashes = event["block_hashes"].get<std::vector<std::uint64_t>>();
    if (tokens.size() != size * hashes.size()) return "tokens and blocks don't match";
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(i * size);
      std::vector<std::int32_t> own(begin, begin + static_cast<std::ptrdiff_t>(size));
      if (!blocks.emplace(hashes[i], std::move(own)).second) return "a block came twice";
    }
    return "";
  }

  Media media_;
};

/// What outlives servers: a folder's files, and what was written there.
struct Disk {
  std::shared_ptr<test::MemoryFiles> files = std::make_shared<test::MemoryFiles>();
  struct Written {
    std::uint64_t name = 0;
    std::vector<std::int32_t> tokens;
    bool is_told = true;
  };
  std::map<std::string, Written> written;  ///< by path
};

/// Of one server: its DiskFolder on those files, whose pieces come from the cache. Some are of another model.
class Folder {
 public:
  Folder(Disk& disk, StoredBlocks& told, const kv::Cache& cache, EventNames names)
      : disk_(disk),
        told_(told),
        cache_(cache),
        names_(names),
        folder_(*disk.files, {.bytes = kBytes, .free_share = 0}, [](const auto&) {}) {
    told_.start({.block_size = static_cast<std::size_t>(cache.config().block_size),
                 .hash = cache.config().hash,
                 .name = [](const kv::Digest& digest, const kv::Namespace&) { return name_of(digest, kOwn); }});
    folder_.observe(told_, name_of({}, kOwn).model);
    folder_.open();
  }
  ~Folder() { folder_.end(); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  /// Something happens to it.
  void step(std::mt19937_64& dice) {
    const std::uint64_t what = dice() % 64;
    if (what < 40) return write(dice);
    const auto held = held_names();
    if (what < 60) {
      if (!held.empty()) use(held[dice() % held.size()], what < 42);
    } else if (what < 62) {
      folder_.forget({.kind = {}, .model = {}, .space = {}, .unused_for = {}});
    } else {
      if (what == 62) damage(held, dice);
      std::ignore = disk_.files->remove("lock");  // somebody does: it is off, and opened again
      folder_.tidy();
      folder_.open();
    }
  }
  /// Nothing is left to do.
  void rest() {
    while (folder_.tidy() || folder_.tell_some({})) {
    }
  }
  /// What there is, by what was written.
  Blocks truth() const {
    Blocks blocks;
    for (const auto& [path, bytes] : disk_.files->files()) {
      const auto found = disk_.written.find(path);
      if (path.starts_with("kv/") && found->second.is_told) blocks.emplace(found->second.name, found->second.tokens);
    }
    return blocks;
  }

 private:
  static constexpr std::uint8_t kOwn = 1, kOther = 2;
  static constexpr std::uint64_t kBytes = 12 * 2 * tier::kBufferAlignment;

  static tier::Name name_of(const kv::Digest& digest, std::uint8_t model) {
    tier::Name name;
    name.model.fill(model);
    name.piece = digest;
    return name;
  }
  std::vector<tier::Name> held_names() const {
    std::vector<tier::Name> names;
    for (const auto& [path, bytes] : disk_.files->files())
      if (path.starts_with("kv/")) names.push_back(*tier::name_in(path.substr(path.rfind('/') + 1)));
    return names;
  }

  void write(std::mt19937_64& dice) {
    const auto blocks = cache_.storables().hottest(0);
    if (blocks.empty()) return;
    cache_.storables().at(blocks[dice() % blocks.size()], false, [&](const kv::Storable& one) {
      const std::uint8_t model = dice() % 8 == 0 ? kOther : kOwn;
      const tier::Name name = name_of(one.digest, model);
      const auto text = kv::spell(one.text);
      const auto origin = kv::spell(kv::BlockOrigin{one.parent, one.is_first, *one.ns});
      tier::Buffer piece = buffers_.take();
      piece.set_size(tier::piece_size(text.size(), 0, 16, origin.size()));
      tier::begin_piece(piece.bytes(), name, text, "", 16, origin);
      tier::seal_piece(piece.bytes());
      if (folder_.take(name, piece.size()) != tier::DiskFolder::Taken::kTaken) return;
      Disk::Written& written = disk_.written[tier::path_of(name)];
      written = {.name = names_.block(one.digest, *one.ns), .tokens = {}, .is_told = model == kOwn};
      for (const std::int32_t bits : one.text.bits()) written.tokens.push_back(bits < 0 ? 0 : bits);
      folder_.write(name, piece, 0, piece.bytes());
    });
  }
  void use(const tier::Name& name, bool is_damaged) {
    tier::Buffer into = buffers_.take();
    folder_.read(name, into);
    if (into.size() > 0 && is_damaged) folder_.put_aside(name);
  }
  /// One of the first bytes of a piece turns: nobody can say any more what it is.
  void damage(const std::vector<tier::Name>& held, std::mt19937_64& dice) {
    if (held.empty()) return;
    const std::string path = tier::path_of(held[dice() % held.size()]);
    constexpr std::size_t kText = 112;
    auto& bytes = *disk_.files->files().at(path);
    bytes[kText + 3] = std::byte{0x7f};  // of a token that there isn't
    disk_.written.at(path).is_told = false;
  }

  Disk& disk_;
  StoredBlocks& told_;
  const kv::Cache& cache_;
  EventNames names_;
  tier::Buffers buffers_{1, std::size_t{64} << 10};
  tier::DiskFolder folder_;
};

/// One episode's publisher and its consumer, in one thread. Outlives the cache, after which it is asked nothing.
class Watch {
 public:
  Watch(kv::Cache& cache, std::uint64_t seed, Disk& disk)
      : cache_(cache),
        dice_(seed),
        names_(EventNames::Secret{42}),
        folder_(std::make_unique<Folder>(disk, feed_.stored(), cache, names_)) {
    cache_.observe(&feed_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  std::int64_t compared = 0, missed = 0, too_late = 0, overflows = 0, stored = 0;

  /// Its cache goes.
  void end() { folder_.reset(); }

  std::string after_operation() {
    if (dice_() % 4 == 0) folder_->step(dice_);
    overflows += feed_.wants_all() ? 1 : 0;
    cache_.tell_all();
    if (dice_() % 4 != 0) return "";  // the thread that sends sleeps
    folder_->rest();
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
    if (const auto disk = consumer_.media().find("DISK"); disk != consumer_.media().end())
      stored += disk->second.empty() ? 0 : 1;
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
    static const Blocks kNone;
    const auto told = [&](const char* medium) -> const Blocks& {
      const auto found = consumer_.media().find(medium);
      return found == consumer_.media().end() ? kNone : found->second;
    };
    if (const Blocks on_disk = folder_->truth(); on_disk != told("DISK"))
      return fmt::format("the consumer has {} blocks of the disk, that has {}", told("DISK").size(), on_disk.size());
    Blocks truth;
    for (const kv::BlockId id : cache_.storables().hottest(0)) {
      cache_.storables().at(id, false, [&](const kv::Storable& one) {
        std::vector<std::int32_t>& tokens = truth[names_.block(one.digest, *one.ns)];
        for (const std::int32_t bits : one.text.bits()) tokens.push_back(bits < 0 ? 0 : bits);
      });
    }
    const Blocks& pool = told("GPU");
    if (truth.size() != pool.size())
      return fmt::format("the consumer has {} blocks, the cache {}", pool.size(), truth.size());
    return truth == pool ? "" : "the consumer has other blocks than the cache";
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
  std::unique_ptr<Folder> folder_;
};

TEST(EventsRandomTest, AConsumerKnowsWhatTheCacheHas) {
  const char* const text = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
  fmt::print("COPPICE_SEED={}\n", seed);
  constexpr std::int64_t kOperations = test::kSanitized ? 30'000 : 120'000;
  std::int64_t operations = 0, compared = 0, missed = 0, too_late = 0, overflows = 0, stored = 0;
  std::shared_ptr<Watch> watch;
  const auto count = [&] {
    if (!watch) return;
    compared += watch->compared;
    missed += watch->missed;
    too_late += watch->too_late;
    overflows += watch->overflows;
    stored += watch->stored;
    watch->end();
  };
  std::uint64_t episode = seed;
  for (const test::Groups groups : test::kAllGroups) {
    Disk disk;
    const test::RandomReport report = test::run_random({.seed = seed,
                                                        .groups = groups,
                                                        .block_size = 8,
                                                        .operations = kOperations / std::ssize(test::kAllGroups),
                                                        .check_integrity = false,
                                                        .watch = [&](kv::Cache& cache) {
                                                          count();
                                                          watch = std::make_shared<Watch>(cache, ++episode, disk);
                                                          return [mine = watch] { return mine->after_operation(); };
                                                        }});
    ASSERT_EQ(report.failure, "");
    if (watch) watch->end();
    operations += report.operations;
  }
  count();
  fmt::print("{} operations, {} comparisons, {} batches missed, {} times too late to ask for them, {} overflows\n",
             operations, compared, missed, too_late, overflows);
  EXPECT_GE(operations, kOperations);
  EXPECT_GE(compared, kOperations / 10);
  EXPECT_GE(stored, kOperations / 20);
  for (const std::int64_t met : {missed, too_late, overflows}) EXPECT_GE(met, 10);
}

}  // namespace
}  // namespace coppice::events
