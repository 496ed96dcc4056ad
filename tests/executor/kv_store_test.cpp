// The KV pool's memory: sizes and copies in every format.
#include "executor/ggml/store/kv_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace coppice::executor {
namespace {

using attention::KvFormat;

constexpr int kBlockSize = 16;

KvStoreConfig config(KvFormat format) {
  return {.n_layer_slots = 3,
          .format = format,
          .n_kv_head = 3,
          .head_dim = 80,
          .block_size = kBlockSize,
          .budget_bytes = std::size_t{1} << 20};
}

class KvStoreTest : public testing::TestWithParam<KvFormat> {
 protected:
  KvStore store_{config(GetParam())};

  std::span<std::byte> block(ggml_tensor* t, kv::BlockId id) const {
    return {static_cast<std::byte*>(t->data) + static_cast<std::size_t>(id) * store_.block_bytes(),
            store_.block_bytes()};
  }
  std::vector<ggml_tensor*> tensors() const {
    std::vector<ggml_tensor*> all;
    for (int layer = 0; layer < 3; ++layer) all.insert(all.end(), {store_.k(layer), store_.v(layer)});
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, KvStoreTest, testing::ValuesIn(attention::kKvFormats),
                         [](const auto& info) { return std::string(format_name(info.param)); });

TEST_P(KvStoreTest, RowsAreWhatTheTensorsSayAndFillTheBudget) {
  EXPECT_EQ(store_.row_bytes(), 3 * attention::head_bytes(GetParam(), 80));
  EXPECT_EQ(store_.bytes_per_block(), 2 * 3 * kBlockSize * store_.row_bytes());
  EXPECT_EQ(store_.num_blocks(), static_cast<std::int32_t>((std::size_t{1} << 20) / store_.bytes_per_block()));
  for (const ggml_tensor* t : tensors()) {
    EXPECT_EQ(t->nb[1], store_.row_bytes());
    EXPECT_GE(t->ne[1], store_.scratch_slot(KvStore::kScratchRows));
  }
}

TEST_P(KvStoreTest, AForkOfAPartlyFilledBlockHasItsBytesAndNoOthers) {
  std::mt19937 random(1);
  std::vector<std::vector<std::byte>> before;
  for (ggml_tensor* t : tensors()) {
    for (std::byte& b : block(t, 7)) b = static_cast<std::byte>(random());
    before.emplace_back(block(t, 7).begin(), block(t, 7).end());
  }
  constexpr int kFilled = 11;
  const std::vector<kv::CopyOp> copies = {{7, 3, kFilled}};
  store_.copy(copies);
  const std::size_t filled = kFilled * store_.row_bytes();
  for (std::size_t i = 0; i < before.size(); ++i) {
    ggml_tensor* t = tensors()[i];
    const auto fork = block(t, 3);
    EXPECT_TRUE(std::ranges::equal(fork.first(filled), std::span(before[i]).first(filled))) << i;
    const auto zero = [](std::byte b) { return b == std::byte{0}; };
    EXPECT_TRUE(std::ranges::all_of(fork.subspan(filled), zero)) << i;
    for (const kv::BlockId id : {0, 2, 4, 6, 8})
      EXPECT_TRUE(std::ranges::all_of(block(t, id), zero)) << i << ", " << id;
    EXPECT_TRUE(std::ranges::equal(block(t, 7), before[i])) << i;
  }
}

}  // namespace
}  // namespace coppice::executor
