// A piece opens as what was written, and as nothing else: not with a bit turned, cut short, made longer, or under
// another name.
#include "tier/piece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/dice.h"

namespace coppice::tier {
namespace {

std::vector<std::byte> random_bytes(test::Dice& dice, std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.below(256));
  return bytes;
}

Name random_name(test::Dice& dice) {
  Name name;
  const auto fill = [&](auto& bytes) {
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(dice.below(256));
  };
  fill(name.model);
  fill(name.space);
  fill(name.piece);
  return name;
}

struct Written {
  Name name;
  std::vector<std::byte> text, origin, payload, bytes;
  std::string about;
};

Written write(test::Dice& dice) {
  Written w{.name = random_name(dice),
            .text = random_bytes(dice, static_cast<std::size_t>(dice.below(300))),
            .origin = random_bytes(dice, static_cast<std::size_t>(dice.below(100))),
            .payload = random_bytes(dice, static_cast<std::size_t>(dice.below(1000))),
            .bytes = {},
            .about = std::string(static_cast<std::size_t>(dice.below(100)), 'a')};
  w.bytes = random_bytes(dice, piece_size(w.text.size(), w.about.size(), w.payload.size(), w.origin.size()));
  const auto place = begin_piece(w.bytes, w.name, w.text, w.about, w.payload.size(), w.origin);
  EXPECT_EQ(place.size(), w.payload.size());
  EXPECT_EQ((place.data() - w.bytes.data()) % 64, 0);
  std::ranges::copy(w.payload, place.begin());
  seal_piece(w.bytes);
  return w;
}

TEST(Piece, OpensAsItWasWritten) {
  test::Dice dice(1);
  for (int i = 0; i < 200; ++i) {
    const Written w = write(dice);
    const auto piece = open_piece(w.bytes, &w.name);
    ASSERT_TRUE(piece.has_value()) << to_string(piece.error());
    EXPECT_EQ(piece->name, w.name);
    EXPECT_TRUE(std::ranges::equal(piece->text, w.text));
    EXPECT_TRUE(std::ranges::equal(piece->origin, w.origin));
    EXPECT_EQ(piece->about, w.about);
    EXPECT_TRUE(std::ranges::equal(piece->payload, w.payload));
  }
}

TEST(Piece, EveryBitCounts) {
  test::Dice dice(2);
  Written w = write(dice);
  for (std::size_t bit = 0; bit < 8 * w.bytes.size(); ++bit) {
    const auto turn = [&] { w.bytes[bit / 8] ^= std::byte{1} << bit % 8; };
    turn();
    EXPECT_FALSE(open_piece(w.bytes, nullptr).has_value()) << "bit " << bit;
    turn();
  }
  EXPECT_TRUE(open_piece(w.bytes, nullptr).has_value());
}

TEST(Piece, WithASealedHeadEveryBitBeforeThePayloadCounts) {
  test::Dice dice(7);
  Written w = write(dice);
  seal_head(w.bytes);
  const std::size_t head = w.bytes.size() - w.payload.size();
  for (std::size_t bit = 0; bit < 8 * w.bytes.size(); ++bit) {
    const auto turn = [&] { w.bytes[bit / 8] ^= std::byte{1} << bit % 8; };
    turn();
    EXPECT_EQ(open_piece(w.bytes, nullptr).has_value(), bit >= 8 * head) << "bit " << bit;
    turn();
  }
  seal_piece(w.bytes);
  w.bytes.back() ^= std::byte{1};
  EXPECT_EQ(open_piece(w.bytes, nullptr).error(), Flaw::kChecksum) << "it may be sealed whole later";
}

TEST(Piece, NoOtherLength) {
  test::Dice dice(3);
  Written w = write(dice);
  for (std::size_t n = 0; n < w.bytes.size(); ++n)
    EXPECT_FALSE(open_piece(std::span(w.bytes).first(n), nullptr).has_value()) << n;
  w.bytes.push_back({});
  EXPECT_EQ(open_piece(w.bytes, nullptr).error(), Flaw::kLength);
}

TEST(Piece, NoOtherName) {
  test::Dice dice(4);
  const Written w = write(dice);
  Name other = w.name;
  ++other.space[3];
  EXPECT_EQ(open_piece(w.bytes, &other).error(), Flaw::kOtherName);
}

TEST(Piece, ItsFirstBytesSayWhatItIsOf) {
  test::Dice dice(6);
  for (int i = 0; i < 200; ++i) {
    const Written w = write(dice);
    const std::size_t enough = 112 + w.text.size() + w.origin.size();
    const auto head = open_head(std::span(w.bytes).first(enough + w.about.size()));
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(head->name, w.name);
    EXPECT_TRUE(std::ranges::equal(head->text, w.text));
    EXPECT_TRUE(std::ranges::equal(head->origin, w.origin));
    EXPECT_EQ(open_head(std::span(w.bytes).first(enough - 1)).error(), Flaw::kLength);
  }
}

TEST(Piece, HeadersOfRubbishAreRefused) {
  test::Dice dice(5);
  const Written w = write(dice);
  for (int i = 0; i < 20000; ++i) {  // numbers of the header that reach beyond the bytes
    std::vector<std::byte> bytes = w.bytes;
    for (std::int64_t n = dice.between(1, 8); n > 0; --n)
      bytes[static_cast<std::size_t>(dice.between(8, 111))] = static_cast<std::byte>(dice.below(256));
    if (bytes != w.bytes) EXPECT_FALSE(open_piece(bytes, nullptr).has_value());
  }
}

}  // namespace
}  // namespace coppice::tier
