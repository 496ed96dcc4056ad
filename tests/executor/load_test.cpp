// Loading: what an executor says of its model, which backend it chooses, and what it refuses.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/tiny.h"
#include "model/model.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"
#include "support/split_gguf.h"

namespace coppice {
namespace {

using test::load;
using test::tiny_path;

TEST(LoadTest, InfoIsComplete) {
  const auto e = load(tiny_path("plain", {}), "auto");
  const auto& info = e->info();
  EXPECT_EQ(info.model_name, "tiny");
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.attention, "tree");
  EXPECT_EQ(info.n_vocab, 320);
  EXPECT_EQ(info.context_length, 512);
  EXPECT_EQ(info.block_size, 32);
  EXPECT_EQ(info.bytes_per_block, 2U * 2 * 2 * 32 * 32);  // K and V, layers, bytes, slots, values
  EXPECT_EQ(info.num_blocks, static_cast<std::int32_t>((4U << 20) / info.bytes_per_block));
  ASSERT_EQ(info.groups.size(), 1U);
  EXPECT_EQ(info.groups[0].kind, kv::GroupKind::kFull);
  EXPECT_EQ(info.groups[0].layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(info.groups[0].bytes_per_token * 32, info.bytes_per_block);
  EXPECT_EQ(info.model_digest.size(), 64U);
  EXPECT_NE(info.layout, load(tiny_path("plain", {}), "auto", 16)->info().layout);
}

TEST(LoadTest, SplitFilesGiveTheSameLogits) {
  std::vector<kv::Token> tokens(100);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<kv::Token>(i * 37 % 320);
  const auto logits = [&](const std::string& path) {
    const auto e = load(path, "auto");
    test::ExecutorRig rig(*e);
    test::RigSequence sequence;
    return rig.feed(sequence, tokens, 64, test::Want::kAll);
  };
  for (const int type : {0, 3}) {  // read from the mappings; packed
    const std::string path = tiny_path("whole_" + std::to_string(type), {.n_embd = 128, .matrix_type = type});
    const auto parts = test::split_gguf(path, test::scratch_folder() / "logits", {.parts = 5});
    EXPECT_EQ(logits(parts[0]), logits(path)) << type;
  }
}

TEST(LoadTest, FormatsDifferInBytesAndInLayoutAndInNothingElse) {
  const std::string path = tiny_path("plain", {});
  const auto f16 = load(path, "auto");
  for (const auto& [format, head] : {std::pair("int8", 2U + 16), {"turbo4", 2U + 16}}) {  // 16 values: half a group
    const auto e = load(path, "auto", 32, 1, format);
    EXPECT_EQ(e->info().attention, "tree") << format;
    EXPECT_EQ(e->info().bytes_per_block, 2U * 2 * 32 * 2 * head) << format;  // K and V, layers, slots, heads
    EXPECT_EQ(e->info().groups[0].bytes_per_token * 32, e->info().bytes_per_block) << format;
    EXPECT_GT(e->info().num_blocks, f16->info().num_blocks) << format;
    std::string layout = e->info().layout;
    EXPECT_EQ(layout.replace(0, std::string_view(format).size(), "f16"), f16->info().layout);
    EXPECT_NE(e->info().layout, f16->info().layout);
    EXPECT_EQ(e->info().model_digest, f16->info().model_digest);
  }
  EXPECT_NE(load(path, "auto", 32, 1, "int8")->info().layout, load(path, "auto", 32, 1, "turbo4")->info().layout);
}

TEST(LoadTest, FormatsThatNobodyCanReadAreErrors) {
  EXPECT_THROW(load(tiny_path("plain", {}), "gather", 32, 1, "int8"), model::LoadError);
  EXPECT_THROW(load(tiny_path("plain", {}), "auto", 32, 1, "q8_0"), model::LoadError);
  const std::string narrow = tiny_path("narrow_heads", {.head_dim = 8});
  for (const char* attention : {"auto", "tree", "dense"}) {
    EXPECT_THROW(load(narrow, attention, 32, 1, "turbo4"), model::LoadError) << attention;
  }
}

TEST(LoadTest, AutoChoosesGatherWhereTheTreeKernelCannotServe) {
  // 257 query heads on one key head: more than a tile has room for, even for one row.
  for (const std::string& path :
       {tiny_path("narrow_heads", {.head_dim = 8}), tiny_path("one_kv_head", {.n_head = 257, .n_kv_head = 1})}) {
    EXPECT_EQ(load(path, "auto")->info().attention, "gather");
    EXPECT_THROW(load(path, "tree"), model::LoadError);
  }
}

TEST(LoadTest, OptionsThatMakeNoSenseAreErrors) {
  const std::string path = tiny_path("plain", {});
  EXPECT_THROW(load(path, "bush"), model::LoadError);
  EXPECT_THROW(load(path, "gather", 7), model::LoadError);
  executor::GgmlOptions o;
  o.kv_bytes = 1000;
  EXPECT_THROW(executor::load_ggml_executor(model::load_model(path), o, {}), model::LoadError);
}

}  // namespace
}  // namespace coppice
