// All sequences of operations to a small depth, on the real code: three sequences, a few blocks of two slots, two
// words. Every sequence is replayed from an empty cache; after its last operation everything is verified, so each
// prefix is verified once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>

#include "support/kv_rig.h"
#include "support/kv_shapes.h"

namespace coppice::test {
namespace {

using kv::SeqId;
using Tokens = std::vector<kv::Token>;

enum class Do {
  kAdmit,    ///< which: the prompt; takes the first free place
  kSpeak,    ///< the rest of the prompt, then 0
  kBegin,    ///< the prompt up to the end of its medium
  kShare,    ///< others wait for the medium
  kDiverge,  ///< one token 1
  kGuess,    ///< two tokens 1, which may be taken back
  kRewind,
  kStep,
  kAccept,  ///< a step, of whose guesses only the first token is accepted; with states none
  kSubmit,
  kCollect,
  kFailStep,
  kFork,
  kFinish,
  kAbandon,
};

struct Move {
  Do what;
  std::size_t which = 0;  ///< a prompt or a place
  std::int32_t to = 0;    ///< kRewind: the length
};

using Prompts = std::array<Tokens, 3>;
const Prompts kPrompts = {{{0, 1, 0}, {0, 1, 1, 0}, {0, 0}}};

/// Two tokens, a medium of three rows that can't be cut, or one with the same symbols, or one that can be cut, and a
/// token.
Prompts media_prompts() {
  Prompts prompts;
  for (int which = 0; const bool whole : {true, true, false}) {
    Tokens& prompt = prompts[static_cast<std::size_t>(which)] = {0, 1};
    const Tokens medium = words_of({.which = which++, .rows = 3, .whole = whole});
    prompt.insert(prompt.end(), medium.begin(), medium.end());
    prompt.push_back(0);
  }
  return prompts;
}

class Game {
 public:
  Game(const kv::CacheConfig& config, bool ahead, bool media)
      : rig_(config, /*verify_each=*/false), ahead_(ahead), media_(media), asked_(media ? media_prompts() : kPrompts) {}
  KvRig& rig() { return rig_; }

  std::vector<Move> moves() const {
    std::vector<Move> result;
    if (free_place()) {
      for (std::size_t p = 0; p < asked_.size(); ++p) result.push_back({Do::kAdmit, p});
    }
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!places_[i]) continue;
      const Story& story = rig_.live().at(*places_[i]);
      if (story.writes.empty()) {
        result.push_back({Do::kSpeak, i});
        if (media_ && story.len() < kEndOfMedium) {
          result.push_back({Do::kBegin, i});
          if (story.wanted_tails.empty()) result.push_back({Do::kShare, i});
        }
        if (story.len() >= story.prompt_len) {
          result.push_back({Do::kDiverge, i});
          if (story.at_rest()) result.push_back({Do::kGuess, i});
        }
      }
      for (const std::int32_t len : story.draft ? rig_.rewinds(*places_[i]) : std::vector<std::int32_t>{})
        result.push_back({Do::kRewind, i, len});
      if (story.at_rest()) {
        if (free_place() && story.forks_left > 0 && story.len() > 0) result.push_back({Do::kFork, i});
      } else {
        result.push_back({Do::kAbandon, i});
      }
      result.push_back({Do::kFinish, i});
    }
    const bool flies = rig_.in_flight() > 0;
    if (rig_.step_in_hand()) {
      if (!ahead_) result.push_back({Do::kStep});
      if (!ahead_ && guesses()) result.push_back({Do::kAccept});
      if (ahead_ && rig_.in_flight() < 2) result.push_back({Do::kSubmit});
    }
    if (flies) result.push_back({Do::kCollect});
    if (flies || rig_.step_in_hand()) result.push_back({Do::kFailStep});
    return result;
  }

  void make(const Move& move) {
    switch (move.what) {
      case Do::kAdmit:
        take(rig_.admit(asked_[move.which], {}, move.which == 0 ? 2 : 1), asked_[move.which]);
        break;
      case Do::kSpeak:
        rig_.extend(seq(move), rest_of(move.which));
        break;
      case Do::kBegin:
        rig_.extend(seq(move), std::span(prompts_[move.which])
                                   .first(kEndOfMedium)
                                   .subspan(static_cast<std::size_t>(rig_.live().at(seq(move)).len())));
        break;
      case Do::kShare:
        rig_.share_tail(seq(move), kEndOfMedium);
        break;
      case Do::kDiverge:
        rig_.extend(seq(move), Tokens{1});
        break;
      case Do::kGuess:
        rig_.extend(seq(move), Tokens{1, 1}, /*draft=*/true);
        break;
      case Do::kRewind:
        rig_.rewind(seq(move), move.to);
        break;
      case Do::kAccept: {
        const std::int32_t first = rig_.cache().config().state_pages > 0 ? 0 : 1;
        rig_.run_step([first](const Story& story, std::int32_t rows) { return story.draft ? first : rows; });
        break;
      }
      case Do::kStep:
        rig_.run_step();
        break;
      case Do::kSubmit:
        rig_.submit(/*runs_at_once=*/false);
        break;
      case Do::kCollect:
        rig_.collect();
        break;
      case Do::kFailStep:
        rig_.fail_step(/*copies_done=*/false);
        for (auto& place : places_) {
          if (place && !rig_.live().contains(*place)) place.reset();
        }
        break;
      case Do::kFork:
        take(rig_.fork(seq(move)), prompts_[move.which]);
        break;
      case Do::kFinish:
        rig_.finish(leave(move));
        break;
      case Do::kAbandon:
        rig_.abandon(leave(move));
        break;
    }
  }

 private:
  bool guesses() const {
    return std::ranges::any_of(rig_.live(), [](const auto& s) { return s.second.draft && !s.second.writes.empty(); });
  }
  std::optional<std::size_t> free_place() const {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!places_[i]) return i;
    }
    return std::nullopt;
  }
  void take(std::optional<SeqId> seq, const Tokens& prompt) {
    if (!seq) return;
    const std::size_t at = *free_place();
    prompts_[at] = prompt;
    places_[at] = seq;
  }
  SeqId seq(const Move& move) const { return *places_[move.which]; }
  SeqId leave(const Move& move) {
    const SeqId seq = *places_[move.which];
    places_[move.which].reset();
    return seq;
  }
  Tokens rest_of(std::size_t place) const {
    const std::int32_t len = rig_.live().at(*places_[place]).len();
    const Tokens& prompt = prompts_[place];
    if (len >= static_cast<std::int32_t>(prompt.size())) return {0};
    return {prompt.begin() + len, prompt.end()};
  }

  KvRig rig_;
  static constexpr std::int32_t kEndOfMedium = 5;
  bool ahead_;  ///< steps are submitted and collected
  bool media_;
  Prompts asked_;
  std::array<std::optional<SeqId>, 3> places_;
  std::array<Tokens, 3> prompts_;
};

std::string to_text(const std::vector<Move>& moves) {
  static constexpr const char* kNames[] = {"admit",   "speak",     "begin", "share",  "diverge",
                                           "guess",   "rewind",    "step",  "accept", "submit",
                                           "collect", "fail_step", "fork",  "finish", "abandon"};
  std::string text;
  for (const Move& m : moves) text += fmt::format("{}({},{}) ", kNames[static_cast<int>(m.what)], m.which, m.to);
  return text;
}

struct Search {
  kv::CacheConfig config;
  bool ahead = false, media = false;
  std::size_t depth = 0;
  std::int64_t sequences = 0;
  std::string failure;
  std::vector<Move> path;

  // Replays the path, verifies, and goes on with every move that is possible then.
  void visit() {
    Game game(config, ahead, media);
    for (std::size_t i = 0; i < path.size(); ++i) {
      if (i + 1 == path.size()) game.rig().verify();  // the last operation is checked against fresh figures
      game.make(path[i]);
    }
    game.rig().verify();
    ++sequences;
    if (!game.rig().failure().empty()) {
      failure = to_text(path) + "\n" + game.rig().failure();
      return;
    }
    if (path.size() == depth) return;
    for (const Move& move : game.moves()) {
      path.push_back(move);
      visit();
      path.pop_back();
      if (!failure.empty()) return;
    }
  }
};

struct Board {
  const char* name;
  int blocks;  ///< per group
  int window;  ///< 0: full attention only
  std::size_t depth;
  bool chunked = false;
  int state_pages = 0;  ///< > 0: recurrent layers, too; the pool has no more blocks for them
  bool ahead = false;   ///< a device works ahead
  bool media = false;   ///< in prompts
};

class CacheExhaustiveTest : public testing::TestWithParam<Board> {};

TEST_P(CacheExhaustiveTest, EverySequenceOfOperations) {
  const Board& board = GetParam();
  Search search{.ahead = board.ahead, .media = board.media, .depth = board.depth - (kSanitized ? 2 : 0)};
  search.config.block_size = 2;
  search.config.groups = {{.kind = kv::GroupKind::kFull, .layers = {0}}};
  if (board.window > 0) {
    search.config.groups.push_back(
        {.kind = kv::GroupKind::kSliding, .window = board.window, .layers = {1}, .chunked = board.chunked});
  }
  if (board.state_pages > 0) {
    search.config.groups.push_back(
        {.kind = kv::GroupKind::kRecurrent, .layers = {2}, .state_pages = board.state_pages});
    search.config.state_stride = search.config.block_size;
  }
  search.config.num_blocks = 1 + board.blocks * static_cast<int>(kv::n_table_groups(search.config.groups));
  search.config.bytes_per_block = 1;
  search.visit();
  fmt::print("{} sequences of up to {} operations\n", search.sequences, search.depth);
  EXPECT_EQ(search.failure, "");
}

INSTANTIATE_TEST_SUITE_P(Boards, CacheExhaustiveTest,
                         testing::Values(Board{"FourBlocks", 4, 0, 9}, Board{"FiveBlocks", 5, 0, 8},
                                         Board{"SixBlocks", 6, 0, 8}, Board{"SixBlocksWindowTwo", 6, 2, 8},
                                         Board{"FiveBlocksWindowThree", 5, 3, 8},
                                         Board{"SixBlocksChunksOfTwo", 6, 2, 8, true},
                                         Board{"SixBlocksStates", 6, 0, 8, false, 1},
                                         Board{"TenBlocksStatesOfTwo", 10, 0, 7, false, 2},
                                         Board{"FiveBlocksAhead", 5, 0, 8, false, 0, true},
                                         Board{"SixBlocksWindowTwoAhead", 6, 2, 8, false, 0, true},
                                         Board{"EightBlocksMedia", 8, 0, 7, false, 0, false, true},
                                         Board{"EightBlocksMediaWindowTwo", 8, 2, 7, false, 0, false, true},
                                         Board{"TenBlocksMediaStates", 10, 0, 7, false, 1, false, true},
                                         Board{"EightBlocksMediaAhead", 8, 0, 7, false, 0, true, true}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace coppice::test
