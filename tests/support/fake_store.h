// FakeStore: a store for the engine's tests. It does nothing until it gets a turn; then it does some of what was asked,
// in any order, on the caller's thread. It may be late, fail, lie and forget, as a seed decides; what it holds outlives
// it, so a second one is what a restarted server finds.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "support/dice.h"
#include "tier/store.h"

namespace coppice::testing {

/// How often, in percent.
struct StoreHabits {
  int late = 40;              ///< each thing that was asked waits for another turn
  int fails = 0;              ///< a load misses, though the piece is there
  int lies = 0;               ///< ... or brings something else
  int wrong_answer = 0;       ///< a name that is held is said not to be, or the reverse
  int forgets = 0;            ///< in a turn: a piece goes
  int drops = 0;              ///< a write is not taken
  bool undetectable = false;  ///< what lies bring has the right name, text and checksum, and the wrong bytes
  bool shares = false;        ///< pieces come in memory of its own
};

class FakeStore final : public tier::Store {
 public:
  using Contents = std::map<tier::Name, std::vector<std::byte>>;

  FakeStore(std::shared_ptr<Contents> contents, std::uint64_t seed, const StoreHabits& habits = {})
      : contents_(std::move(contents)), dice_(seed), habits_(habits) {}

  void find(std::vector<tier::Name> names, Found done) override;
  void load(const tier::Name& name, tier::Buffer into, Loaded done) override;
  bool offer(const tier::Name& name, tier::Buffer piece) override;
  void forget(const tier::Which& which) override;
  bool shares() const override { return habits_.shares; }
  bool is_at(tier::StoreKind place) const override { return place == tier::StoreKind::kDisk; }
  std::vector<tier::Counters> places() const override;
  void stop(tier::Clock::time_point until) override;

  /// A reset of the cache is to empty the pool alone.
  void ignore_forget() { ignores_forget_ = true; }
  /// Does some of what was asked.
  void turn();
  /// From now on it does nothing, in no turn; or again something.
  void stall(bool stalled) { stalled_ = stalled; }

  std::size_t waiting() const { return asked_.size(); }
  std::int64_t waiting_writes() const;
  std::int64_t found() const { return found_; }      ///< names that were held
  std::int64_t brought() const { return brought_; }  ///< pieces that opened
  std::int64_t refused() const { return refused_; }  ///< lies that were seen
  std::int64_t missed() const { return missed_; }
  std::int64_t written() const { return written_; }
  std::int64_t wanted_while_written() const { return wanted_while_written_; }

 private:
  struct Asked {
    std::vector<tier::Name> names;  // a question, of one name otherwise
    Found found;
    Loaded loaded;
    tier::Buffer buffer;  // of a load: to fill; of a write: full
  };

  bool is_written(const tier::Name& name) const;
  void run(Asked& asked);
  void lie(const tier::Name& name, std::vector<std::byte>& bytes);

  std::shared_ptr<Contents> contents_;
  test::Dice dice_;
  StoreHabits habits_;
  std::deque<Asked> asked_;
  bool stalled_ = false, stopped_ = false, ignores_forget_ = false;
  std::int64_t found_ = 0, brought_ = 0, refused_ = 0, missed_ = 0, written_ = 0, wanted_while_written_ = 0;
};

}  // namespace coppice::testing
