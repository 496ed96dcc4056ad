#include "support/kv_random_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>

#include "support/dice.h"
#include "support/kv_random_texts.h"

namespace coppice::test {

namespace {

using kv::SeqId;
using kv::Token;

/// One cache from empty to drained.
class Episode {
 public:
  Episode(const RandomRun& run, Dice& dice) : dice_(dice), bs_(run.block_size) {
    const int per_group = static_cast<int>(run.large                      ? dice.between(90, 130)
                                           : run.narrow                   ? dice.between(4, 5)
                                           : run.dense || dice.chance(75) ? dice.between(7, 14)
                                                                          : dice.between(90, 130));
    const Shape shape{.groups = run.groups, .block_size = bs_, .constant_hash = dice.chance(25) && !run.watch};
    kv::CacheConfig config = make_config(shape, per_group);
    config.share = !dice.chance(3);
    ahead_ = dice.chance(config.groups.back().kind == kv::GroupKind::kRecurrent ? 30 : 65);
    config.max_extend = (dice.chance(50) ? 3 : 1) * bs_;
    longest_ = std::min(6, per_group) * bs_;
    std::vector<FakeMedium> media;
    if (run.large || run.dense || (run.media && dice.chance(75))) {
      const bool large = run.large || (per_group > 20 && dice.chance(30));
      if (large) {
        config.max_extend = kLargeRows + bs_;
        longest_ = 2 * kLargeRows;
      }
      for (int i = 0; i < 4; ++i) {
        const auto rows = large && i < 3 ? kLargeRows : dice.between(1, config.max_extend);
        media.push_back(
            {.which = i, .rows = static_cast<std::int32_t>(rows), .whole = i < 2 || (!run.dense && dice.chance(50))});
      }
      if (dice.chance(80)) media[1].rows = media[0].rows;  // the same symbols
      if (dice.chance(80)) media[3] = {.which = 3, .rows = media[2].rows, .whole = media[2].whole};
    }
    chunk_ = config.max_extend;
    const int vocabulary = static_cast<int>(dice.between(2, 4));
    what_ = fmt::format("{} blocks a group, vocabulary {}, share {}, constant hash {}, ahead {}, {} media", per_group,
                        vocabulary, config.share, shape.constant_hash, ahead_, media.size());
    texts_.emplace(dice_, bs_, vocabulary, longest_, std::move(media), run.dense ? 90 : 45);
    rig_.emplace(std::move(config));
    rig_->store().set_fault(run.store_fault);
    rig_->trust_integrity(run.check_integrity);
    if (run.watch) rig_->check_also(run.watch(rig_->cache()));
  }

  KvRig& rig() { return *rig_; }
  const std::string& what() const { return what_; }
  bool quiet() const { return quiet_; }  ///< nothing was evicted: every match was predicted exactly

  void play(std::int64_t operations) {
    while (rig_->operations() < operations && rig_->failure().empty()) turn();
    quiet_ = !rig_->evicted();
    if (rig_->failure().empty()) rig_->drain();
  }

 private:
  static constexpr std::int32_t kLargeRows = 300;

  void turn() {
    const std::int64_t roll = dice_.below(110);
    if (roll >= 107) return share_tail();
    if (roll < 10) return start();
    if (roll < 52) return extend();
    if (roll < 72) return dice_.chance(ahead_ ? 6 : 4) ? fail_step() : step();
    if (roll < 80) return fork();
    if (roll < 83) return end(false);
    if (roll < 86) return end(true);
    if (roll < 90) return preempt(any_live(), true);
    if (roll < 93) return probe();
    if (roll < 96) return pin();
    if (roll < 98) return unpin();
    if (roll == 100) return keep_state();
    if (roll > 100) return rewind();
    if (roll < 99 || !dice_.chance(32)) return probe_pin();
    rig_->clear();
  }

  // ---- who

  // nullptr when nobody suits.
  template <class Fits>
  const std::pair<const SeqId, Story>* pick(Fits fits) {
    std::vector<const std::pair<const SeqId, Story>*> suited;
    for (const auto& entry : rig_->live()) {
      if (fits(entry.second)) suited.push_back(&entry);
    }
    return suited.empty() ? nullptr : dice_.one_of(suited);
  }
  static bool at_rest(const Story& s) { return s.at_rest(); }
  // States are of one step at a time.
  bool grows(const Story& s) const {
    const bool has_states = rig_->cache().config().state_pages > 0;
    return s.writes.empty() && s.len() - s.computed < chunk_ && (s.at_rest() || !has_states);
  }
  std::optional<SeqId> any_live() {
    const auto* found = pick([](const Story&) { return true; });
    return found == nullptr ? std::nullopt : std::optional(found->first);
  }

  // ---- operations

  // What follows the prompt are tokens.
  bool admit(const Text& script, std::int64_t prompt_len) {
    const auto wanted = static_cast<std::int32_t>(prompt_len);
    const std::int32_t before = cut_before(script.tokens, wanted);
    const std::int32_t length = before > 0 ? before : cut_behind(script.tokens, wanted);
    const auto prompt = std::span(script.tokens).first(static_cast<std::size_t>(length));
    const int n = dice_.chance(25) ? static_cast<int>(dice_.between(2, 3)) : 1;
    const auto seq = rig_->admit(prompt, script.ns, n);
    if (!seq) return false;
    Tokens& own = scripts_[*seq] = script.tokens;
    own.erase(std::find_if(own.begin() + length, own.end(), is_piece), own.end());
    return true;
  }

  void start() {
    if (rig_->live().size() >= 8) return end(false);
    if (!probes_.empty() && dice_.chance(60) && refill(dice_.one_of(probes_.all()).text)) return;
    if (!waiting_.empty() && dice_.chance(60)) {
      resume();
      return;
    }
    // A twin of somebody who runs: followers in flight, blocks computed twice.
    if (const auto twin = any_live(); twin && dice_.chance(ahead_ ? 70 : 40)) {
      const Tokens script = scripts_[*twin];
      if (admit({rig_->live().at(*twin).ns, script},
                dice_.chance(50) ? size(script) : dice_.between(1, size(script)))) {
        return;
      }
    }
    const Text text = texts_->make();
    admit(text, dice_.chance(20) ? size(text.tokens) : dice_.between(1, size(text.tokens)));
  }

  // Computes a text again of which eviction took a part: holes are filled.
  bool refill(const Text& text) {
    const auto tokens = std::span(text.tokens);
    if (rig_->cache().match(to_kv(tokens), text.ns) == static_cast<std::int32_t>(tokens.size())) return false;
    if (!admit(text, size(text.tokens))) return false;
    const SeqId seq = rig_->live().rbegin()->first;
    const auto chunk = static_cast<std::size_t>(chunk_);
    while (rig_->failure().empty()) {
      const std::int32_t len = rig_->live().at(seq).len();
      const auto rest = tokens.subspan(static_cast<std::size_t>(len));
      const auto most = static_cast<std::int32_t>(std::min(rest.size(), chunk));
      const std::int32_t n = cut_before(tokens, len + most) - len;  // media fit into a chunk
      if (rest.empty() || !rig_->extend(seq, rest.first(static_cast<std::size_t>(n)))) break;
      rig_->run_step();
    }
    return true;
  }

  void extend() {
    const auto* found = pick([&](const Story& s) { return grows(s); });
    if (found == nullptr) return ahead_ && rig_->in_flight() > 0 ? rig_->collect(accept_) : step();
    grow(*found);
  }

  void grow(const std::pair<const SeqId, Story>& one) {
    const SeqId seq = one.first;
    const std::int32_t len = one.second.len();
    if (len >= longest_) return end(false);
    Tokens& script = scripts_[seq];
    const bool prefill = len < one.second.prompt_len;
    std::int64_t n = prefill ? dice_.between(1, dice_.chance(50) ? chunk_ : bs_)
                             : dice_.between(1, dice_.chance(ahead_ ? 40 : 65) ? 2 : 2 * bs_);
    if (prefill) n = std::min<std::int64_t>(n, one.second.prompt_len - len);
    n = std::min<std::int64_t>({n, longest_ - len, chunk_ - (len - one.second.computed)});
    // As the engine does, mostly: a step ends where a state is kept.
    if (dice_.chance(60)) n = std::min<std::int64_t>(n, rig_->cache().next_stop(seq) - len);
    if (n <= 0) return step();  // a tail is in a step in hand
    n = whole_rows(script, one.second, static_cast<std::int32_t>(n));
    if (n <= 0) return step();
    while (size(script) < len + n) script.push_back(texts_->noise(1)[0]);
    const std::int64_t evictions = rig_->cache().stats().evictions;
    const bool extended =
        rig_->extend(seq, std::span(script).subspan(static_cast<std::size_t>(len), static_cast<std::size_t>(n)),
                     /*draft=*/dice_.chance(40));
    if (!rig_->failure().empty()) return;
    if (rig_->cache().stats().evictions != evictions && probes_.lost_a_branch(rig_->cache()))
      rig_->count(Transition::kEvictInSplitPath);
    if (!extended && dice_.chance(50)) preempt(rig_->live().rbegin()->first, false);  // the youngest
  }

  // A step ends where the text may be cut. 0: the medium that comes next doesn't fit beside the step in hand.
  std::int32_t whole_rows(std::span<const Token> script, const Story& story, std::int32_t n) const {
    const std::int32_t len = story.len(), before = cut_before(script, len + n) - len;
    if (before > 0) return before;
    const std::int32_t behind = cut_behind(script, len + n) - len;
    return behind <= chunk_ - (len - story.computed) ? behind : 0;
  }

  void share_tail() {
    const auto* found = pick([](const Story& s) { return s.len() + 1 < s.prompt_len; });
    if (found == nullptr) return extend();
    const Story& story = found->second;
    const auto at = static_cast<std::int32_t>(dice_.between(story.len() + 1, story.prompt_len));
    const std::int32_t cut = dice_.chance(50) ? cut_before(story.prompt, at) : cut_behind(story.prompt, at);
    rig_->share_tail(found->first, cut);
  }

  // In some episodes a device works ahead.
  void step() {
    if (!ahead_) return rig_->run_step(accept_);
    if (rig_->in_flight() < 2 && dice_.chance(60)) return rig_->submit(dice_.chance(30));
    if (rig_->in_flight() > 0) rig_->collect(accept_);
  }

  // Of a step that may be taken back, mostly all. Who is rewound goes on with other words, or the same.
  std::int32_t accepted(const Story& story, std::int32_t rows) {
    const bool has_states = rig_->cache().config().state_pages > 0;
    if (dice_.chance(75) || (has_states && !story.draft)) return rows;
    if (has_states) return 0;
    const auto some = static_cast<std::int32_t>(dice_.below(rows + 1));
    return cut_before(story.tokens, story.computed + some) - story.computed;
  }

  void rewind() {
    const auto* found = pick([](const Story& s) { return !s.at_rest(); });
    if (found == nullptr) return extend();
    const SeqId seq = found->first;
    const auto lengths = rig_->rewinds(seq);
    if (lengths.empty()) return step();
    const std::int32_t len = dice_.one_of(lengths);
    rig_->rewind(seq, len);
    Tokens& script = scripts_[seq];
    const bool media = std::any_of(script.begin() + len, script.end(), is_piece);  // these stay in a prompt
    if (len > 0 && !media && dice_.chance(50)) script.resize(static_cast<std::size_t>(len));
  }

  void fail_step() {
    rig_->fail_step(dice_.chance(50));
    forget_scripts();
  }

  void fork() {
    const auto* found = pick([](const Story& s) { return at_rest(s) && s.forks_left > 0 && s.len() >= s.prompt_len; });
    if (found == nullptr || rig_->live().size() >= 8) return;
    const SeqId parent = found->first;
    const SeqId child = rig_->fork(parent);
    Tokens script = rig_->live().at(parent).tokens;
    scripts_[child] = dice_.chance(50) ? scripts_[parent] : script;
  }

  void end(bool abandon) {
    const auto seq = any_live();
    if (!seq) return;
    const Story story = rig_->live().at(*seq);
    scripts_.erase(*seq);
    if (abandon) return rig_->abandon(*seq);
    rig_->finish(*seq);
    if (story.computed == 0) return;
    Text text{story.ns, story.tokens};
    text.tokens.resize(static_cast<std::size_t>(story.computed));
    texts_->remember(text);
    probes_.watch(text, rig_->cache());
  }

  void preempt(std::optional<SeqId> seq, bool may_resume_now) {
    const auto* flying = ahead_ && may_resume_now ? pick([](const Story& s) { return !s.at_rest(); }) : nullptr;
    if (flying != nullptr) seq = flying->first;
    if (may_resume_now && dice_.chance(60)) {
      const auto in_medium = [this](const auto& live) {
        return live.second.at_rest() && is_inside(scripts_.at(live.first), live.second.len());
      };
      const auto found = std::ranges::find_if(rig_->live(), in_medium);
      if (found != rig_->live().end()) seq = found->first;
    }
    if (!seq || rig_->live().at(*seq).len() == 0) return;
    const Story& story = rig_->live().at(*seq);
    waiting_.push_back({{story.ns, scripts_[*seq]}, story.len()});
    if (size(waiting_.back().text.tokens) < story.len()) waiting_.back().text.tokens = story.tokens;
    scripts_.erase(*seq);
    const bool flies = !story.at_rest();
    rig_->finish(*seq);
    if (!may_resume_now || !dice_.chance(flies ? 95 : 50)) return;
    if (flies) std::swap(waiting_.front(), waiting_.back());
    // While the step runs that wrote behind its tail somebody takes that.
    if (resume() && flies && rig_->live().rbegin()->second.len() < longest_) grow(*rig_->live().rbegin());
  }

  bool resume() {
    const Waiting back = waiting_.front();
    if (!admit(back.text, back.len)) return false;
    waiting_.pop_front();
    if (!rig_->failure().empty()) return false;
    if (rig_->live().rbegin()->second.cached == 0) return true;
    rig_->count(Transition::kPreemptAndResume);
    if (is_inside(back.text.tokens, back.len)) rig_->count(Transition::kPreemptInMedium);
    if (rig_->cache().config().state_pages > 0) rig_->count(Transition::kStateRestored);
    return true;
  }

  void keep_state() {
    const auto* found = pick(at_rest);
    if (found != nullptr)
      rig_->keep_state(found->first, found->second.len() + static_cast<std::int32_t>(dice_.below(2 * bs_)));
  }

  void probe() {
    const Text text = texts_->make();
    rig_->match(text.tokens, text.ns);
  }

  // Of what runs, of what came and went, or of a text of which little is known.
  void pin() {
    if (rig_->pins().size() >= 4) return unpin();
    Text text = texts_->known().empty() || dice_.chance(10) ? texts_->make() : dice_.one_of(texts_->known());
    if (const auto seq = any_live(); seq && dice_.chance(50)) {
      const Story& story = rig_->live().at(*seq);
      text = {story.ns, story.tokens};
    }
    text.tokens.resize(
        static_cast<std::size_t>(dice_.chance(60) ? size(text.tokens) : dice_.below(size(text.tokens) + 1)));
    const std::int64_t total = rig_->cache().stats().total;
    rig_->pin({.prefix = text.tokens,
               .ns = text.ns,
               .owner = dice_.chance(50) ? "one" : "other",
               .most = dice_.chance(60) ? total / 3 : total,
               .most_of_owner = dice_.chance(60) ? total / 6 : total});
  }

  void unpin() {
    if (!rig_->pins().empty()) rig_->unpin(dice_.one_of(rig_->pins()).first);
  }

  void probe_pin() {
    if (rig_->pins().empty()) return pin();
    const PinStory& story = dice_.one_of(rig_->pins()).second;
    const Tokens tail = texts_->noise(dice_.between(0, bs_));
    Tokens tokens = story.tokens;
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    rig_->match(tokens, story.ns);
  }

  void forget_scripts() {
    std::erase_if(scripts_, [&](const auto& s) { return !rig_->live().contains(s.first); });
  }

  struct Waiting {
    Text text;
    std::int32_t len = 0;
  };

  Dice& dice_;
  const int bs_;
  int longest_ = 0;
  int chunk_ = 0;  ///< max_extend
  bool ahead_ = false;
  std::optional<KvRig> rig_;
  std::string what_;
  bool quiet_ = false;
  std::optional<Texts> texts_;
  std::deque<Waiting> waiting_;
  Probes probes_;
  KvRig::Accept accept_ = [this](const Story& story, std::int32_t rows) { return accepted(story, rows); };
  std::map<SeqId, Tokens> scripts_;  // what each sequence will say, as far as known
};

}  // namespace

RandomReport run_random(const RandomRun& run) {
  RandomReport report;
  Dice dice(run.seed);
  while (report.operations < run.operations && report.failure.empty()) {
    std::string what;
    try {
      Episode episode(run, dice);
      what = episode.what();
      try {
        episode.play(std::min(dice.between(300, 1500), run.operations - report.operations));
        report.failure = episode.rig().failure();
      } catch (const std::exception& e) {
        report.failure = fmt::format("operation {}: exception: {}", episode.rig().operations(), e.what());
      }
      ++report.episodes;
      report.operations += episode.rig().operations();
      if (episode.quiet()) ++report.quiet_episodes;
      for (std::size_t t = 0; t < report.met.size(); ++t) report.met[t] += episode.rig().met()[t];
    } catch (const std::exception& e) {
      report.failure = fmt::format("exception: {}", e.what());
    }
    if (!report.failure.empty()) {
      report.failure =
          fmt::format("{} groups, block size {}, episode {} ({}), COPPICE_SEED={}:\n{}", to_text(run.groups),
                      run.block_size, report.episodes, what, run.seed, report.failure);
    }
  }
  return report;
}

}  // namespace coppice::test
