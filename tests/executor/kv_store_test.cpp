// The KV pool's memory: what lies where in a page, sizes, and copies in every format.
#include "executor/ggml/store/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace coppice::executor {
namespace {

using attention::KvFormat;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kBlockSize = 16;
constexpr std::size_t kBudget = std::size_t{1} << 20;

/// Three layers that see all, two kinds that slide with other heads, one that reads another's. Rows of the last kind
/// don't divide a page.
std::vector<KvLayer> mixed_layers() {
  const KvLayer full{0, 3, 80}, sliding{40, 3, 80}, other{90, 7, 32}, none{0, 0, 80};
  return {sliding, sliding, full,    sliding, other, full,  sliding, sliding,
          other,   full,    sliding, other,   none,  other, other};
}

class KvStoreTest : public testing::TestWithParam<KvFormat> {
 protected:
  KvStore store_{make_page_layout(mixed_layers(), GetParam(), kBlockSize), kBudget};
  const PageLayout& layout_ = store_.layout();

  std::byte* slot(const ggml_tensor* t, int layer, kv::BlockId id, int i) const {
    const auto group = static_cast<std::size_t>(layout_.layers[static_cast<std::size_t>(layer)].group);
    const std::vector<kv::BlockId> table = {id};
    return static_cast<std::byte*>(t->data) +
           static_cast<std::size_t>(store_.row(group, {table, kBlockSize}, i)) * t->nb[1];
  }
  std::span<std::byte> page(kv::BlockId id) const {
    auto* first = static_cast<std::byte*>(store_.k(2)->data);  // lies at the beginning of its pages
    return {first + static_cast<std::size_t>(id) * layout_.page_bytes, layout_.page_bytes};
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, KvStoreTest, testing::ValuesIn(attention::kKvFormats),
                         [](const auto& info) { return std::string(format_name(info.param)); });

TEST_P(KvStoreTest, TheFullGroupSetsThePageAndOthersTakeAsManyAsTheyNeed) {
  const std::size_t row = 3 * attention::head_bytes(GetParam(), 80);
  EXPECT_EQ(layout_.page_bytes, 2 * 3 * kBlockSize * row);
  EXPECT_EQ(store_.num_blocks(), static_cast<std::int32_t>(kBudget / layout_.page_bytes));
  ASSERT_EQ(layout_.groups.size(), 5U);
  EXPECT_THAT(layout_.groups[0].layers, ElementsAre(2, 5, 9));
  EXPECT_THAT(layout_.groups[1].layers, ElementsAre(0, 1, 3));
  EXPECT_THAT(layout_.groups[2].layers, ElementsAre(6, 7, 10));
  EXPECT_THAT(layout_.groups[3].layers, ElementsAre(4, 8, 11));
  EXPECT_THAT(layout_.groups[4].layers, ElementsAre(13, 14));
  EXPECT_EQ(layout_.groups[0].kind, kv::GroupKind::kFull);
  EXPECT_EQ(layout_.groups[4].window, 90);
  EXPECT_EQ(layout_.groups[0].bytes_per_token, 6 * row);
  EXPECT_EQ(layout_.layers[12].group, -1);
  EXPECT_EQ(store_.k(12), nullptr);
}

TEST_P(KvStoreTest, EachSlotHasBytesOfItsOwnInTheGroupsPage) {
  for (const kv::GroupSpec& group : layout_.groups) {
    std::set<std::ptrdiff_t> taken;
    std::size_t bytes = 0;
    for (const int layer : group.layers) {
      for (const ggml_tensor* t : {store_.k(layer), store_.v(layer)}) {
        EXPECT_EQ(ggml_row_size(t->type, t->ne[0]), layout_.layers[static_cast<std::size_t>(layer)].row_bytes);
        for (int i = 0; i < kBlockSize; ++i) {
          const std::ptrdiff_t at = slot(t, layer, 4, i) - page(4).data();
          for (std::size_t b = 0; b < ggml_row_size(t->type, t->ne[0]); ++b) {
            EXPECT_TRUE(taken.insert(at + static_cast<std::ptrdiff_t>(b)).second);
          }
          bytes += ggml_row_size(t->type, t->ne[0]);
        }
      }
    }
    EXPECT_GE(*taken.begin(), 0);
    EXPECT_LT(*taken.rbegin(), static_cast<std::ptrdiff_t>(layout_.page_bytes));
    EXPECT_EQ(bytes, group.bytes_per_token * kBlockSize);
  }
}

TEST_P(KvStoreTest, ScratchRowsLieBehindThePoolAndApart) {
  const std::byte* end = page(store_.num_blocks()).data();
  for (int layer = 0; layer < 15; ++layer) {
    const ggml_tensor* t = store_.v(layer);
    if (!t) continue;
    const auto group = static_cast<std::size_t>(layout_.layers[static_cast<std::size_t>(layer)].group);
    const std::size_t row = ggml_row_size(t->type, t->ne[0]);
    const std::byte* free_from = end;
    for (int i = 0; i < KvStore::kScratchRows; ++i) {
      const std::int64_t n = store_.scratch_row(group, i);
      ASSERT_LT(n, t->ne[1]);
      const auto* at = static_cast<const std::byte*>(t->data) + static_cast<std::size_t>(n) * t->nb[1];
      EXPECT_GE(at, free_from) << layer << ", " << i;
      free_from = at + row;
    }
    EXPECT_LE(free_from, end + KvStore::kScratchRows / kBlockSize * layout_.page_bytes);
  }
}

TEST_P(KvStoreTest, WhatIsStoredComesBackElsewhereAndNothingElseChanges) {
  std::mt19937 random(2);
  const auto fill = [&](std::span<std::byte> bytes) {
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  };
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    for (const kv::BlockId id : {3, 4, 5}) fill(page(id));
    const std::vector<std::byte> stored(page(4).begin(), page(4).end()), other(page(5).begin(), page(5).end());
    std::vector<std::byte> memory(store_.outside_bytes(g));
    EXPECT_EQ(memory.size(), layout_.groups[g].bytes_per_token * kBlockSize);
    const std::vector<std::span<std::byte>> outside = {memory};
    const auto run = [&](kv::BlockOp::Kind kind, kv::BlockId id) {
      const std::vector<kv::BlockOp> ops = {
          {.kind = kind, .src = id, .dst = id, .n_slots = kBlockSize, .group = static_cast<int>(g), .outside = 0}};
      store_.run(ops, outside);
    };
    run(kv::BlockOp::Kind::kStore, 4);
    fill(page(4));
    run(kv::BlockOp::Kind::kLoad, 3);
    for (const int layer : layout_.groups[g].layers) {
      for (const ggml_tensor* t : {store_.k(layer), store_.v(layer)}) {
        const std::size_t row = ggml_row_size(t->type, t->ne[0]);
        for (int i = 0; i < kBlockSize; ++i) {
          const std::byte* const at = slot(t, layer, 3, i);
          EXPECT_TRUE(std::equal(at, at + row, stored.begin() + (at - page(3).data()))) << layer << ", " << i;
        }
      }
    }
    EXPECT_TRUE(std::ranges::equal(page(5), other));
  }
}

TEST_P(KvStoreTest, AForkOfAPartlyFilledBlockHasItsGroupsBytesAndNoOthers) {
  constexpr int kFilled = 11, kGroup = 4;  // two of the three layers that would fit
  std::mt19937 random(1);
  for (std::byte& b : page(7)) b = static_cast<std::byte>(random());
  const std::vector<std::byte> before(page(7).begin(), page(7).end());
  const std::vector<kv::BlockOp> copies = {{.src = 7, .dst = 3, .n_slots = kFilled, .group = kGroup}};
  store_.run(copies);
  std::vector<std::byte> expected(layout_.page_bytes);
  for (const int layer : layout_.groups[kGroup].layers) {
    for (const ggml_tensor* t : {store_.k(layer), store_.v(layer)}) {
      for (int i = 0; i < kFilled; ++i) {
        const std::ptrdiff_t at = slot(t, layer, 7, i) - page(7).data();
        const auto row = static_cast<std::ptrdiff_t>(ggml_row_size(t->type, t->ne[0]));
        std::copy(before.begin() + at, before.begin() + at + row, expected.begin() + at);
      }
    }
  }
  EXPECT_TRUE(std::ranges::equal(page(3), expected));
  EXPECT_TRUE(std::ranges::equal(page(7), before));
  for (const kv::BlockId id : {0, 2, 4, 6, 8}) {
    EXPECT_TRUE(std::ranges::all_of(page(id), [](std::byte b) { return b == std::byte{0}; })) << id;
  }
}

/// n layers, the last of each `full_every` sees all.
std::vector<KvLayer> pattern(int n, int full_every, int window, int n_kv_head, int head_dim) {
  std::vector<KvLayer> layers;
  for (int i = 0; i < n; ++i) layers.push_back({i % full_every == full_every - 1 ? 0 : window, n_kv_head, head_dim});
  return layers;
}

TEST(PageLayoutTest, SaysWhatLiesIdle) {
  const auto lines = [](const std::vector<KvLayer>& layers, KvFormat format = KvFormat::kF16) {
    return describe_pages(make_page_layout(layers, format, 32));
  };
  EXPECT_THAT(lines(pattern(16, 1, 0, 8, 64)), ElementsAre(HasSubstr("that see all positions: 16, in 1 page ")));
  EXPECT_THAT(
      lines(pattern(18, 6, 512, 1, 256)),  // Gemma 3 270M
      ElementsAre(HasSubstr(" 0 %"), AllOf(HasSubstr("that see a window of 512: 15, in 5 pages "), HasSubstr(" 0 %"))));
  EXPECT_THAT(lines(pattern(62, 6, 1024, 16, 128)),  // Gemma 3 27B
              ElementsAre(HasSubstr(" 0 %"),
                          AllOf(HasSubstr("that see a window of 1024: 52, in 6 pages "), HasSubstr("13.3 %"))));
  // Other heads where layers slide, as in Gemma 4: 10 layers of 4 heads of 512, 50 of 16 heads of 256.
  auto layers = pattern(60, 6, 1024, 16, 256);
  for (KvLayer& layer : layers) {
    if (layer.window == 0) layer = {0, 4, 512};
  }
  EXPECT_THAT(lines(layers), ElementsAre(HasSubstr(" 0 %"), AllOf(HasSubstr(": 50, in 10 pages "), HasSubstr(" 0 %"))));
  // Five are a little larger than a page, because of their scales: it grows.
  EXPECT_THAT(lines(layers, KvFormat::kInt8),
              ElementsAre(HasSubstr(" 0.388 %"), AllOf(HasSubstr(": 50, in 10 pages "), HasSubstr(" 0 %"))));
}

TEST(PageLayoutTest, APageHoldsTheLargestLayer) {
  const std::vector<KvLayer> layers = {{64, 8, 64}, {0, 1, 64}};
  const PageLayout layout = make_page_layout(layers, KvFormat::kF16, 8);
  EXPECT_EQ(layout.page_bytes, 2U * 8 * 8 * 64 * 2);
  EXPECT_EQ(layout.groups.size(), 2U);
}

TEST(PageLayoutTest, LayersThatKeepAllAreOfOneKind) {
  const std::vector<KvLayer> layers = {{0, 8, 64}, {0, 4, 64}};
  EXPECT_THROW(make_page_layout(layers, KvFormat::kF16, 8), model::LoadError);
}

}  // namespace
}  // namespace coppice::executor
