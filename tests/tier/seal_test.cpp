// Seal: what opens, and what does not.
#include "tier/seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "support/dice.h"

namespace coppice::tier {
namespace {

std::vector<std::byte> secret(char c) {
  return {Seal::kLeastSecret, static_cast<std::byte>(c)};
}

Name name_of(int model, int space, int piece) {
  Name name;
  name.model.fill(static_cast<std::uint8_t>(model));
  name.space.fill(static_cast<std::uint8_t>(space));
  name.piece.fill(static_cast<std::uint8_t>(piece));
  return name;
}

class SealTest : public testing::Test {
 protected:
  Buffer buffer(std::size_t size = 5000) {
    Buffer filled = buffers_.take();
    filled.set_size(size);
    for (std::size_t i = 0; i < size; ++i) filled.bytes()[i] = static_cast<std::byte>(7 * i);
    return filled;
  }
  static std::vector<std::byte> copy(const Buffer& from) { return {from.bytes().begin(), from.bytes().end()}; }

  Buffers buffers_{4, 8192};
  const Seal seal_{secret('a')};
  const Name name_ = seal_.outside(name_of(1, 2, 3));
};

TEST_F(SealTest, OpensWhatItClosed) {
  for (const std::size_t size : {0, 1, 15, 16, 17, 5000, 8192 - 36}) {
    Buffer piece = buffer(size);
    const auto before = copy(piece);
    ASSERT_TRUE(seal_.close(name_, piece));
    EXPECT_EQ(piece.size(), size + Seal::kBytes);
    EXPECT_TRUE(Seal::is_sealed(piece.bytes()));
    EXPECT_TRUE(size < 15 || std::ranges::search(piece.bytes(), before).empty());
    ASSERT_TRUE(seal_.open(name_, piece));
    EXPECT_EQ(copy(piece), before);
  }
  Buffer full = buffer(8192 - 35);
  EXPECT_FALSE(seal_.close(name_, full));
}

TEST_F(SealTest, OpensAPiecesFirstBytesAlone) {
  for (const std::size_t size : {100, 5000}) {
    Buffer piece = buffer(size);
    const auto before = copy(piece);
    ASSERT_TRUE(seal_.close(name_, piece));
    auto head = copy(piece);
    head.resize(100);
    const auto end = piece.bytes().last(Seal::kBytes);
    EXPECT_FALSE(seal_.open_head(name_, head, std::span(before).last(Seal::kBytes))) << "it isn't sealed";
    ASSERT_TRUE(seal_.open_head(name_, head, end));
    EXPECT_TRUE(std::ranges::equal(head, std::span(before).first(100)));
  }
}

TEST_F(SealTest, TheSameTwiceLooksDifferent) {
  Buffer one = buffer(), two = buffer();
  ASSERT_TRUE(seal_.close(name_, one) && seal_.close(name_, two));
  EXPECT_NE(copy(one), copy(two));
}

TEST_F(SealTest, NothingElseOpens) {
  Buffer sealed = buffer();
  ASSERT_TRUE(seal_.close(name_, sealed));
  const auto whole = copy(sealed);
  const auto opens = [&](const Seal& seal, const Name& name, std::span<const std::byte> bytes) {
    Buffer piece = buffer();
    piece.set_size(bytes.size());
    std::ranges::copy(bytes, piece.bytes().begin());
    const bool opened = seal.open(name, piece);
    EXPECT_EQ(opened, piece.size() > 0);
    return opened;
  };
  EXPECT_TRUE(opens(seal_, name_, whole));
  EXPECT_FALSE(opens(Seal(secret('b')), name_, whole));
  for (const Name& other : {name_of(9, 2, 3), name_of(1, 9, 3), name_of(1, 2, 9)})
    EXPECT_FALSE(opens(seal_, seal_.outside(other), whole));
  test::Dice dice(1);
  for (int i = 0; i < 300; ++i) {
    auto changed = whole;
    const std::size_t at =
        i < 36 ? changed.size() - 1 - static_cast<std::size_t>(i) : static_cast<std::size_t>(dice.below(5000));
    changed[at] ^= std::byte{1} << static_cast<int>(dice.below(8));
    EXPECT_FALSE(opens(seal_, name_, changed));
    EXPECT_FALSE(opens(seal_, name_, std::span(whole).first(static_cast<std::size_t>(dice.below(5036)))));
  }
  EXPECT_FALSE(opens(seal_, name_, copy(buffer())));
}

TEST_F(SealTest, NamesTellOnlyWhatBelongsTogether) {
  std::set<std::string> seen;
  const Seal other(secret('b'));
  for (const Seal* seal : {&seal_, &other}) {
    for (int model = 0; model < 2; ++model) {
      for (int space = 0; space < 2; ++space) {
        const Name name = name_of(model, space, 3), outside = seal->outside(name);
        const Which which =
            seal->outside(Which{.model = name.model, .space = name.space, .unused_for = std::chrono::seconds(3)});
        EXPECT_EQ(which.model, outside.model);
        EXPECT_EQ(which.space, outside.space);
        EXPECT_EQ(which.unused_for, std::chrono::seconds(3));
        EXPECT_EQ(seal->outside(name), outside);
        EXPECT_TRUE(seen.insert(to_string(outside)).second && outside.piece != name.piece &&
                    outside.model != name.model);
        EXPECT_NE(seal->outside(name_of(model, space, 4)).piece, outside.piece);
      }
    }
  }
  EXPECT_FALSE(seal_.outside(Which{}).model || seal_.outside(Which{}).space);
}

}  // namespace
}  // namespace coppice::tier
