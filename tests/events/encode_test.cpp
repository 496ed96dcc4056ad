// What is in batches, read by another one's MessagePack. That vLLM's structures give the same bytes is tried in
// tests/e2e/test_kv_events.py.
#include "events/encode.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kv/text.h"

namespace coppice::events {
namespace {

using nlohmann::json;

constexpr int kBlock = 4;

kv::Digest digest(std::uint8_t n) {
  kv::Digest digest{};
  digest.fill(n);
  return digest;
}

std::uint64_t name(std::uint8_t n) {
  return n * std::uint64_t{0x0101010101010101};
}

const kv::Namespace kNobody;
const EventNames kNames{EventNames::Secret{1, 2, 3}};

/// Changes of blocks whose digests are bytes repeated.
struct Story {
  Changes changes;
  void enters(std::uint8_t n, std::uint8_t parent, const kv::TextView& text = std::vector<kv::Token>{1, 2, 3, 4},
              const kv::Namespace& ns = kNobody) {
    const auto spans = text.spans();
    changes.symbols.insert(changes.symbols.end(), text.bits().begin(), text.bits().end());
    changes.spans.insert(changes.spans.end(), spans.begin(), spans.end());
    changes.list.push_back({.entered = true,
                            .is_first = parent == 0,
                            .space = space(ns),
                            .n_spans = static_cast<std::uint32_t>(spans.size()),
                            .digest = digest(n),
                            .parent = digest(parent)});
  }
  void leaves(std::uint8_t n, const kv::Namespace& ns = kNobody) {
    changes.list.push_back({.space = space(ns), .digest = digest(n)});
  }
  std::uint32_t space(const kv::Namespace& ns) {
    if (changes.spaces.empty() || changes.spaces.back() != ns) changes.spaces.push_back(ns);
    return static_cast<std::uint32_t>(changes.spaces.size() - 1);
  }
  json events() const {
    const auto batches = encode(changes, {.block_size = kBlock, .names = kNames}, 5.5);
    EXPECT_EQ(batches.size(), 1U);
    const json batch = json::from_msgpack(batches.at(0));
    EXPECT_EQ(batch.size(), 3U);
    EXPECT_EQ(batch[0], 5.5);
    EXPECT_EQ(batch[2], 0);
    return batch[1];
  }
};

TEST(EncodeTest, TellsOfBlocksThatFollowEachOtherInOneEvent) {
  Story story;
  story.enters(1, 0, std::vector<kv::Token>{10, 11, 12, 13});
  story.enters(2, 1, std::vector<kv::Token>{14, 15, 16, 70'000});
  story.enters(3, 1);
  story.leaves(2);
  story.leaves(3);
  const json events = story.events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0], json({{"type", "BlockStored"},
                             {"block_hashes", {name(1), name(2)}},
                             {"parent_block_hash", nullptr},
                             {"token_ids", {10, 11, 12, 13, 14, 15, 16, 70'000}},
                             {"block_size", 4},
                             {"lora_id", nullptr},
                             {"medium", "GPU"},
                             {"lora_name", nullptr},
                             {"group_idx", 0},
                             {"kv_cache_spec_kind", "full_attention"}}));
  EXPECT_EQ(events[1]["parent_block_hash"], name(1));
  EXPECT_EQ(events[1]["block_hashes"], json({name(3)}));
  EXPECT_EQ(
      events[2],
      json({{"type", "BlockRemoved"}, {"block_hashes", {name(2), name(3)}}, {"medium", "GPU"}, {"group_idx", 0}}));
}

TEST(EncodeTest, BeginsAnew) {
  Story story;
  EXPECT_TRUE(encode(story.changes, {.block_size = kBlock, .names = kNames}, 0).empty());
  story.changes.anew = true;
  EXPECT_EQ(story.events(), json::array({json({{"type", "AllBlocksCleared"}})}));
  story.enters(1, 0);
  EXPECT_EQ(story.events().size(), 2U);
}

TEST(EncodeTest, CutsLongStoriesIntoBatches) {
  Story story;
  story.changes.anew = true;
  for (std::uint8_t n = 1; n <= 10; ++n) story.enters(n, n - 1);
  const auto batches = encode(story.changes, {.block_size = kBlock, .names = kNames, .most_blocks = 4}, 0);
  ASSERT_EQ(batches.size(), 3U);
  std::vector<std::uint64_t> hashes;
  int cleared = 0;
  for (const std::string& bytes : batches) {
    for (const json& event : json::from_msgpack(bytes)[1]) {
      cleared += event["type"] == "AllBlocksCleared" ? 1 : 0;
      if (event["type"] != "BlockStored") continue;
      EXPECT_EQ(event["token_ids"].size(), event["block_hashes"].size() * kBlock);
      if (hashes.empty()) EXPECT_TRUE(event["parent_block_hash"].is_null());
      if (!hashes.empty()) EXPECT_EQ(event["parent_block_hash"], hashes.back());
      for (const json& hash : event["block_hashes"]) hashes.push_back(hash);
    }
  }
  EXPECT_EQ(cleared, 1);
  EXPECT_EQ(hashes.size(), 10U);
}

TEST(EncodeTest, TellsSaltsAtTheBeginningOfTexts) {
  const kv::Namespace salted{.salt = "tenant", .adapter = {}};
  const kv::Namespace adapted{.salt = "tenant", .adapter = "poet"};
  Story story;
  story.enters(1, 0, std::vector<kv::Token>{1, 2, 3, 4}, salted);
  story.enters(2, 1, std::vector<kv::Token>{1, 2, 3, 4}, salted);
  story.enters(3, 0, std::vector<kv::Token>{1, 2, 3, 4}, adapted);
  story.enters(4, 3, std::vector<kv::Token>{1, 2, 3, 4}, adapted);
  story.enters(5, 2, std::vector<kv::Token>{1, 2, 3, 4}, salted);
  const json events = story.events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0]["extra_keys"], json({{"tenant"}, nullptr}));
  EXPECT_EQ(events[0]["lora_name"], nullptr);
  EXPECT_EQ(events[1]["extra_keys"], json({{"poet", "tenant"}, {"poet"}}));
  EXPECT_EQ(events[1]["lora_name"], "poet");
  EXPECT_FALSE(events[2].contains("extra_keys"));
}

TEST(EncodeTest, NamesWhatIsAKeysUnderASecret) {
  const kv::Namespace owned{.salt = kv::Namespace::kOwnerMark + std::string(32, 'k') + "more", .adapter = {}};
  Story story;
  story.enters(1, 0, std::vector<kv::Token>{1, 2, 3, 4}, owned);
  story.enters(2, 1, std::vector<kv::Token>{1, 2, 3, 4}, owned);
  story.leaves(2, owned);
  const json events = story.events();
  EXPECT_EQ(events[0]["block_hashes"], json({kNames.block(digest(1), owned), kNames.block(digest(2), owned)}));
  EXPECT_EQ(events[1]["block_hashes"], json({kNames.block(digest(2), owned)}));
  EXPECT_NE(events[0]["block_hashes"][0], name(1));
  const std::string salt = events[0]["extra_keys"][0][0];
  EXPECT_EQ(salt.size(), 32U);
  EXPECT_EQ(salt.find_first_not_of("0123456789abcdef"), std::string::npos);

  const EventNames others{EventNames::Secret{9}};
  EXPECT_NE(others.block(digest(1), owned), kNames.block(digest(1), owned));
  EXPECT_NE(others.salt(owned), salt);
  EXPECT_EQ(others.block(digest(1), kNobody), name(1));
}

TEST(EncodeTest, TellsPicturesByTheirDigests) {
  kv::Text text{std::vector<kv::Token>{7}};
  text.append(kv::Medium{.digest = digest(0xab), .rows = 5, .whole = false});
  text.append(std::vector<kv::Token>{8, 9});
  Story story;
  story.enters(1, 0, text.view().first(kBlock));
  story.enters(2, 1, text.view().subspan(kBlock, kBlock));
  const json events = story.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0]["token_ids"], json({7, 0, 0, 0, 0, 0, 8, 9}));
  std::string hex;
  for (int i = 0; i < 32; ++i) hex += "ab";
  EXPECT_EQ(events[0]["extra_keys"][0], json::array({json::array({hex, 1})}));
  EXPECT_EQ(events[0]["extra_keys"][1], json::array({json::array({hex, -3})}));
}

TEST(EncodeTest, EachMediumHasEventsOfItsOwn) {
  Story story;
  story.enters(1, 0);
  story.enters(2, 1);
  for (const Medium medium : {Medium::kHost, Medium::kDisk}) {
    story.enters(2, 1);
    story.changes.list.back().medium = medium;
  }
  story.leaves(2);
  story.leaves(2);
  story.changes.list.back().medium = Medium::kDisk;
  const json events = story.events();
  ASSERT_EQ(events.size(), 5U);
  const auto is = [&](std::size_t i, const char* type, const char* medium, const std::vector<std::uint64_t>& hashes) {
    return events[i]["type"] == type && events[i]["medium"] == medium && events[i]["block_hashes"] == hashes;
  };
  EXPECT_TRUE(is(0, "BlockStored", "GPU", {name(1), name(2)}));
  EXPECT_TRUE(is(1, "BlockStored", "CPU", {name(2)}) && is(2, "BlockStored", "DISK", {name(2)}));
  EXPECT_EQ(events[2]["parent_block_hash"], name(1));
  EXPECT_TRUE(is(3, "BlockRemoved", "GPU", {name(2)}) && is(4, "BlockRemoved", "DISK", {name(2)}));
}

}  // namespace
}  // namespace coppice::events
