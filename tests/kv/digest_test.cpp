// Block identity.
#include "kv/digest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace coppice::kv {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

Digest sha256_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

// FIPS 180-2, appendix B.1 and B.2; and the empty string.
TEST(DigestTest, Sha256OfKnownStrings) {
  EXPECT_EQ(hex(sha256_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256_of("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// A block of text has the digest that it always had: what was stored under it stays found.
TEST(DigestTest, ABlockOfTextIsItsParentAndItsTokens) {
  const std::vector<Token> tokens = {1, 2, 70000};
  std::string bytes(32, 7);
  for (const unsigned char byte : {1, 0, 0, 0, 2, 0, 0, 0, 0x70, 0x11, 1, 0}) bytes += static_cast<char>(byte);
  Digest parent;
  parent.fill(7);
  EXPECT_EQ(block_digest(sha256, parent, tokens), sha256_of(bytes));
}

TEST(DigestTest, ABlockTakesTheWholeDigestsOfItsMedia) {
  const auto digest = [](const Medium& medium, std::size_t from) {
    Text text = std::vector<Token>{1, 2};
    text.append(medium);
    return block_digest(sha256, {}, text.view().subspan(from, 3));
  };
  const Medium medium{.digest = {1, 2, 3}, .rows = 4};
  Medium other = medium, longer = medium, whole = medium;
  other.digest[31] = 1;  // its symbols are the same
  longer.rows = 5;
  whole.whole = true;
  const std::set<Digest> different = {digest(medium, 0), digest(other, 0),  digest(longer, 0),
                                      digest(whole, 0),  digest(medium, 3), digest(other, 3)};
  EXPECT_EQ(different.size(), 6U);
}

TEST(DigestTest, EverythingThatDecidesTheKeysIsInTheRoot) {
  const auto root = [](const char* model, const char* layout, const char* salt, const char* adapter) {
    return root_digest(sha256, model, layout, {.salt = salt, .adapter = adapter});
  };
  const std::set<Digest> different = {
      root("m", "l", "s", "a"), root("M", "l", "s", "a"), root("m", "L", "s", "a"), root("m", "l", "S", "a"),
      root("m", "l", "s", "A"), root("m", "l", "", "sa"), root("m", "l", "sa", ""), root("ml", "", "s", "a"),
      root("", "ml", "s", "a"), root("m", "ls", "", "a"),
  };
  EXPECT_EQ(different.size(), 10U) << "two different inputs share a digest: fields run into one another";
  EXPECT_EQ(root("m", "l", "s", "a"), root("m", "l", "s", "a"));
}

TEST(DigestTest, ABlockIsChainedToItsPredecessors) {
  const Digest root = root_digest(sha256, "m", "l", {});
  const Digest other_root = root_digest(sha256, "m", "l", {.salt = "tenant"});
  const std::vector<Token> ab = {1, 2}, ba = {2, 1}, negative = {-1, 2};
  const Digest block = block_digest(sha256, root, ab);
  EXPECT_EQ(block, block_digest(sha256, root, ab));
  EXPECT_NE(block, block_digest(sha256, other_root, ab)) << "another parent";
  EXPECT_NE(block, block_digest(sha256, root, ba)) << "other tokens";
  EXPECT_NE(block, block_digest(sha256, root, negative)) << "a media symbol is not its negative";
  EXPECT_NE(block, block_digest(sha256, block, ab)) << "the same tokens, one block further";
}

TEST(DigestTest, TheHashIsTheCallersChoice) {
  int calls = 0;
  const HashFn counting = [&](std::span<const std::byte> bytes) {
    ++calls;
    Digest digest{};
    digest[0] = static_cast<std::uint8_t>(bytes.size());
    return digest;
  };
  const Digest root = root_digest(counting, "m", "l", {});
  const std::vector<Token> tokens = {1, 2, 3};
  EXPECT_EQ(block_digest(counting, root, tokens)[0], 32 + 3 * sizeof(Token));
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace coppice::kv
