// StoredBlocks: what is told of pieces in tiers, and what isn't. With a real folder: events_random_test.
#include "events/stored_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kv/block_bytes.h"

namespace coppice::events {
namespace {

constexpr std::size_t kSymbols = 4;

tier::Name piece_of(const kv::Digest& digest) {
  tier::Name name;
  name.piece = digest;
  return name;
}

/// Three blocks that follow each other in a text, as pieces.
class StoredBlocksTest : public testing::Test {
 protected:
  struct Piece {
    kv::Digest digest{};
    std::vector<std::byte> text, origin;
  };

  StoredBlocksTest() {
    stored_.start({.block_size = kSymbols, .name = [](const auto& digest, const auto&) { return piece_of(digest); }});
    kv::Digest parent{1};
    for (int i = 0; i < 3; ++i) {
      const kv::Text text(std::vector<kv::Token>{i, i + 1, i + 2, i + 3});
      Piece piece{.digest = kv::block_digest(kv::sha256, parent, text),
                  .text = kv::spell(text.view()),
                  .origin = kv::spell(kv::BlockOrigin{parent, i == 0, {.salt = "s", .adapter = "a"}})};
      parent = piece.digest;
      pieces_.push_back(std::move(piece));
    }
  }

  void enters(std::size_t i, tier::StoreKind place = tier::StoreKind::kDisk) {
    const Piece& piece = pieces_[i];
    stored_.entered(place, piece_of(piece.digest), {piece_of(piece.digest), piece.text, piece.origin});
  }
  void leaves(std::size_t i, tier::StoreKind place = tier::StoreKind::kDisk) {
    stored_.left(place, piece_of(pieces_[i].digest));
  }
  /// What comes, in a word each: "+0" entered, "-0" left; "h" before it: in the host's memory.
  std::vector<std::string> told(bool anew = false) {
    Changes changes;
    changes.anew = anew;
    stored_.add_to(changes);
    std::vector<std::string> words;
    for (const Changes::One& one : changes.list) {
      const auto found = std::ranges::find(pieces_, one.digest, &Piece::digest);
      words.push_back(std::string(one.medium == Medium::kHost ? "h" : "") + (one.entered ? "+" : "-") +
                      std::to_string(found - pieces_.begin()));
    }
    return words;
  }
  using Words = std::vector<std::string>;

  StoredBlocks stored_;
  std::vector<Piece> pieces_;
};

TEST_F(StoredBlocksTest, WhatComesAndGoesIsToldOnce) {
  enters(1);
  enters(0);
  enters(1, tier::StoreKind::kHost);
  EXPECT_EQ(told(), Words({"+1", "+0", "h+1"}));
  leaves(1);
  enters(2);
  leaves(2);
  EXPECT_EQ(told(), Words({"-1", "+2", "-2"}));
  EXPECT_EQ(told(), Words());
  EXPECT_EQ(told(/*anew=*/true), Words({"h+1", "+0"}));
}

TEST_F(StoredBlocksTest, AnewWhatComesBeforeIsToldBefore) {
  for (const std::size_t i : {2U, 0U, 1U}) enters(i);
  EXPECT_EQ(told(/*anew=*/true), Words({"+0", "+1", "+2"}));
  EXPECT_EQ(told(), Words());
}

TEST_F(StoredBlocksTest, APlaceThatIsEmptiedTakesNothingElseAlong) {
  enters(0);
  enters(0, tier::StoreKind::kHost);
  told();
  stored_.emptied(tier::StoreKind::kDisk);
  enters(1);
  EXPECT_EQ(told(), Words({"-0", "+1"}));
  EXPECT_EQ(told(/*anew=*/true), Words({"h+0", "+1"}));
}

TEST_F(StoredBlocksTest, ItsTextAndOriginComeWithIt) {
  enters(1);
  Changes changes;
  stored_.add_to(changes);
  ASSERT_EQ(changes.list.size(), 1U);
  EXPECT_EQ(changes.symbols, std::vector<std::int32_t>({1, 2, 3, 4}));
  EXPECT_EQ(changes.list[0].parent, pieces_[0].digest);
  EXPECT_FALSE(changes.list[0].is_first);
  EXPECT_EQ(changes.spaces.at(0), (kv::Namespace{.salt = "s", .adapter = "a"}));
}

TEST_F(StoredBlocksTest, WhatIsNotWhatItsNameSaysIsNotTold) {
  pieces_[0].text[0] ^= std::byte{1};
  pieces_[1].origin[5] ^= std::byte{1};
  pieces_[2].origin.resize(3);
  for (std::size_t i = 0; i < 3; ++i) enters(i);
  EXPECT_EQ(told(), Words());
  for (std::size_t i = 0; i < 3; ++i) leaves(i);
  EXPECT_EQ(told(), Words());
}

}  // namespace
}  // namespace coppice::events
