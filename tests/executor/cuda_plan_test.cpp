// What the CUDA executor does on the host: which models it takes, how it packs their matrices, how it plans a step and
// cuts one that has no room into parts. Needs no GPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "executor/base/batch_check.h"
#include "executor/cuda/misfit.h"
#include "executor/cuda/packed_rows.h"
#include "executor/cuda/step_plan.h"
#include "support/attention_cases.h"
#include "support/family_models.h"

namespace coppice::executor::cuda {
namespace {

using ::testing::HasSubstr;

class FamilyTest : public ::testing::TestWithParam<test::FamilyModel> {};

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, ::testing::ValuesIn(test::family_models()),
                         [](const auto& info) { return info.param.name; });

/// In shapes that the kernels have, each family either runs or is refused for what it has and the executor lacks.
TEST_P(FamilyTest, IsTakenOrRefusedForWhatIsMissing) {
  test::TinyModel tiny = GetParam().model;
  const auto path = test::scratch_folder() / (GetParam().name + ".gguf");
  EXPECT_THAT(misfit(model::load_model(test::write_tiny_model(tiny, path).string())), ::testing::Not(""))
      << "heads of " << tiny.head_dim;
  tiny.head_dim = 64;
  if (tiny.sliding_head_dim > 0) tiny.sliding_head_dim = 64;
  if (const auto sections = tiny.settings.find("rope.dimension_sections"); sections != tiny.settings.end())
    sections->second = std::vector{12, 10, 10, 0};
  const model::Model model = model::load_model(test::write_tiny_model(tiny, path).string());
  const std::string why = misfit(model);
  static const std::map<std::string, std::string> kRefused = {
      {"exaone4_sliding", "a matrix of 32 inputs, which is no multiple of 64"},
      {"gemma4", "scaled layers"},
      {"gemma4_shared", "embeddings of each layer"},
      {"gemma4_experts", "experts with norms of their own"},
  };
  const auto refused = kRefused.find(GetParam().name);
  EXPECT_EQ(why, refused == kRefused.end() ? "" : refused->second);
  if (why.empty()) EXPECT_THAT(kFitting, HasSubstr(model.spec.architecture));
}

/// What GPUs have once for a step is looked at in all layers, not in the first.
TEST(Misfit, AnyLayerMayNotFit) {
  test::TinyModel tiny = {
      .architecture = "spark2_5", .n_layer = 2, .n_embd = 64, .head_dim = 64, .slides = {false, true}};
  tiny.settings = {{"attention.sliding_window", 96}, {"rope.freq_base_swa", 500.0F}};
  const auto path = test::scratch_folder() / "heads.gguf";
  const auto why = [&] { return misfit(model::load_model(test::write_tiny_model(tiny, path).string())); };
  tiny.sliding_kv_heads = 1;
  EXPECT_EQ(why(), "") << "each group of layers has its heads";
  tiny.n_head = 192, tiny.n_kv_head = 192;
  EXPECT_EQ(why(), "192 heads that share keys");
}

TEST(Misfit, HybridsAreRefused) {
  for (const test::FamilyModel& hybrid : test::hybrid_models()) {
    test::TinyModel tiny = hybrid.model;
    tiny.head_dim = 64;
    const auto path = test::scratch_folder() / (hybrid.name + ".gguf");
    const std::string why = misfit(model::load_model(test::write_tiny_model(tiny, path).string()));
    EXPECT_EQ(why, "recurrent layers") << hybrid.name;
  }
}

/// A file with matrices of a type, and the same with the numbers that these stand for.
struct Files {
  model::Model packed, exact;
};

Files files_of(int ggml_type) {
  const test::TinyModel tiny = {.n_embd = 256, .head_dim = 64, .n_ff = 512, .matrix_type = ggml_type, .tied = false};
  const auto folder = test::scratch_folder();
  const auto path = test::write_tiny_model(tiny, folder / fmt::format("packed-{}.gguf", ggml_type));
  test::dequantize_gguf(path, folder / fmt::format("exact-{}.gguf", ggml_type));
  return {model::load_model(path.string()),
          model::load_model((folder / fmt::format("exact-{}.gguf", ggml_type)).string())};
}

const model::TensorInfo& down_of(const model::Model& m) {
  return m.file->tensors()[static_cast<std::size_t>(m.spec.layers[0].feed_forward.down.weight)];
}

constexpr int kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ8_0 = 8, kQ4K = 12, kQ6K = 14, kBf16 = 30;

/// So that threads can share a matrix, and matrices of one type be joined.
TEST(PackedRowsTest, PiecesOfAMatrixAreTheWholeOne) {
  for (const int type : {kF32, kF16, kQ4_0, kQ4_1, kQ8_0, kQ4K, kQ6K}) {
    const Files files = files_of(type);
    const model::TensorInfo& tensor = down_of(files.packed);
    const auto whole = pack_rows(*files.packed.file, tensor, 0, 0, 256);
    EXPECT_EQ(whole.size(), packed_bytes(packed_type(tensor), 512, 256)) << type;
    std::vector<std::byte> joined;
    for (const auto& [first, n] : {std::pair{0, 16}, std::pair{16, 128}, std::pair{144, 112}}) {
      const auto piece = pack_rows(*files.packed.file, tensor, 0, first, n);
      joined.insert(joined.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(joined, whole) << type;
  }
}

TEST(PackedRowsTest, PiecesOfPairsAreTheWhole) {
  for (const int type : {kF32, kF16, kQ4_0, kQ4K}) {
    const Files files = files_of(type);
    const model::GatedSpec& ff = files.packed.spec.layers[0].feed_forward;
    const model::GgufFile& file = *files.packed.file;
    const auto info = [&](const model::LinearSpec& linear) {
      return file.tensors()[static_cast<std::size_t>(linear.weight)];
    };
    const auto whole = pack_pair_rows(file, info(ff.gate), info(ff.up), 0, 512);
    EXPECT_EQ(whole.size(), packed_bytes(packed_type(info(ff.up)), 256, 1024)) << type;
    std::vector<std::byte> joined;
    for (const auto& [first, n] : {std::pair{0, 8}, std::pair{8, 128}, std::pair{136, 376}}) {
      const auto piece = pack_pair_rows(file, info(ff.gate), info(ff.up), first, n);
      joined.insert(joined.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(joined, whole) << type;
    const auto other = pack_pair_rows(file, info(ff.up), info(ff.gate), 0, 512);
    EXPECT_NE(other, whole) << type;
  }
}

/// Each expert's matrices are packed as one's alone, also where gate and up are one tensor in the file.
TEST(PackedRowsTest, EachExpertIsPackedByItself) {
  for (const test::FamilyModel& family : test::family_models()) {
    if (family.name != "mixtral" && family.name != "gemma4_experts") continue;
    const bool fused = family.name == "gemma4_experts";
    const auto path = test::scratch_folder() / (family.name + "-experts.gguf");
    const model::Model model = model::load_model(test::write_tiny_model(family.model, path).string());
    const model::ExpertsSpec& experts = model.spec.layers[0].experts;
    for (const model::LinearSpec* linear : {&experts.gate, &experts.up, &experts.down}) {
      const model::TensorInfo& tensor = model.file->tensors()[static_cast<std::size_t>(linear->weight)];
      ASSERT_EQ(tensor.stride > 0, fused && linear != &experts.down);
      const auto n = static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]);
      const std::size_t stride = tensor.stride > 0 ? tensor.stride : n * sizeof(float);
      for (int expert = 0; expert < experts.n; ++expert) {
        const auto of_expert = model.file->tensor_bytes(tensor).subspan(static_cast<std::size_t>(expert) * stride);
        std::vector<std::uint16_t> rounded;
        for (std::size_t i = 0; i < n; ++i) {
          std::uint32_t bits = 0;
          std::memcpy(&bits, of_expert.data() + i * sizeof bits, sizeof bits);
          rounded.push_back(static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
        }
        EXPECT_EQ(pack_rows(*model.file, tensor, expert, 0, tensor.shape[1]),
                  matmul::cuda::pack(matmul::QuantType::kBf16, static_cast<int>(tensor.shape[0]),
                                     static_cast<int>(tensor.shape[1]), std::as_bytes(std::span(rounded))))
            << tensor.name << ", expert " << expert;
      }
    }
  }
}

/// A type without a product becomes bf16 of the numbers that it stands for.
TEST(PackedRowsTest, OtherTypesBecomeBf16) {
  for (const int type : {kF16, kQ4_1, kQ5_0, kBf16}) {
    const Files files = files_of(type);
    EXPECT_EQ(packed_type(down_of(files.packed)), matmul::QuantType::kBf16);
    EXPECT_EQ(pack_rows(*files.packed.file, down_of(files.packed), 0, 0, 256),
              pack_rows(*files.exact.file, down_of(files.exact), 0, 0, 256))
        << type;
  }
}

/// Rounded to the nearest, not cut: the mean error of many is next to nothing.
TEST(PackedRowsTest, Bf16IsRounded) {
  const Files files = files_of(kF32);
  const model::TensorInfo& tensor = down_of(files.packed);
  const auto bytes = files.packed.file->tensor_bytes(tensor);
  const auto packed = pack_rows(*files.packed.file, tensor, 0, 0, 256);
  double sizes = 0.0, exact = 0.0;
  for (std::size_t i = 0; i < 256 * 512; ++i) {
    float number = 0.0F;
    std::memcpy(&number, bytes.data() + i * sizeof number, sizeof number);
    exact += std::abs(static_cast<double>(number));
    std::uint16_t bits = 0;
    std::memcpy(&bits, packed.data() + 2 * i, sizeof bits);
    sizes += std::abs(static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16)));
  }
  EXPECT_LT(std::abs(sizes - exact) / exact, 1e-4) << "cut ones lose some 2e-3";
}

Batch batch_of(const test::AttentionCase& c) {
  Batch batch;
  for (const test::CaseSequence& s : c.sequences) {
    batch.sequences.push_back({s.n_rows, s.first_position, {{s.table, c.block_size}}});
    for (int i = 0; i < s.n_rows; ++i) {
      batch.rows.push_back(static_cast<kv::Token>(batch.rows.size() * 7 % 100));
      batch.positions.push_back({.time = batch.n_rows(), .height = i, .width = 3});
      if (batch.rows.size() % 3 == 0) batch.logit_rows.push_back(batch.n_rows() - 1);
      if (batch.rows.size() % 5 == 0) batch.hidden_rows.push_back(batch.n_rows() - 1);
      if (batch.rows.size() % 7 == 0) batch.sample_rows.push_back(batch.n_rows() - 1);
      if (batch.rows.size() % 4 == 0) batch.rows.back() = RowSource::drawn(batch.n_rows() % 9);
    }
  }
  batch.block_ops = {{.src = 1, .dst = 2, .n_slots = 3}};
  return batch;
}

std::vector<AttentionGroup> one_group(const test::AttentionCase& c) {
  AttentionGroup group{c.group, c.heads, 1};
  group.kv.layers = {0};
  group.kv.bytes_per_token = 100;
  return {group};
}

/// What part_of() cuts a batch into is all of it, each row once, in order, at its own position and slot.
TEST(StepPlanTest, PartsAreTheWholeBatch) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < 50;) {
    const test::AttentionCase c = test::random_case({.sliding = round % 2 == 1}, random);
    if (c.block_size != attention::cuda::kBlockSize) continue;
    ++round;
    const Batch whole = batch_of(c);
    const auto groups = one_group(c);
    const StepLimits limits = step_limits(2048, 16, 1024, groups, std::size_t{1} << 30);
    StepPlan of_whole(limits, groups, 132), of_part(limits, groups, 132);
    ASSERT_TRUE(of_whole.plan(whole));
    std::vector<std::int32_t> positions, slots, logit_rows, hidden_rows, sample_rows;
    std::vector<RowSource> rows;
    std::vector<RopePosition> places;
    std::size_t copies = 0;
    for (int at = 0, n = 0; at < whole.n_rows(); at += n) {
      n = std::min(1 + static_cast<int>(random() % 20), whole.n_rows() - at);
      const Batch part = part_of(whole, at, n);
      ASSERT_TRUE(of_part.plan(part));
      ASSERT_EQ(part.n_rows(), n);
      copies += part.block_ops.size();
      rows.insert(rows.end(), part.rows.begin(), part.rows.end());
      places.insert(places.end(), part.positions.begin(), part.positions.end());
      for (const std::int32_t r : part.logit_rows) logit_rows.push_back(at + r);
      for (const std::int32_t r : part.hidden_rows) hidden_rows.push_back(at + r);
      for (const std::int32_t r : part.sample_rows) sample_rows.push_back(at + r);
      positions.insert(positions.end(), of_part.positions().begin(), of_part.positions().end());
      slots.insert(slots.end(), of_part.group(0).slots.begin(), of_part.group(0).slots.end());
    }
    EXPECT_EQ(copies, 1U);
    EXPECT_EQ(rows, whole.rows);
    EXPECT_EQ(places, whole.positions);
    EXPECT_EQ(logit_rows, whole.logit_rows);
    EXPECT_EQ(hidden_rows, whole.hidden_rows);
    EXPECT_EQ(sample_rows, whole.sample_rows);
    EXPECT_TRUE(std::ranges::equal(positions, of_whole.positions()));
    EXPECT_TRUE(std::ranges::equal(slots, of_whole.group(0).slots));
  }
}

/// What recurrent layers and attention do, in small: a state is a number of all rows so far, and a row gives the one
/// behind all that it sees.
std::vector<std::uint64_t> run_small(const Batch& batch, std::map<kv::BlockId, std::uint64_t>& pages) {
  std::vector<std::uint64_t> given;
  for (const BatchSequence& s : batch.sequences) {
    std::vector<std::uint64_t> states;
    std::uint64_t state = s.state_in.empty() ? 0 : pages.at(s.state_in[0]);
    for (int i = 0; i < s.n_rows; ++i) {
      state = state * 1000003 + static_cast<std::uint64_t>(batch.rows[given.size() + states.size()].number);
      states.push_back(state);
    }
    for (int i = 0; i < s.n_rows; ++i) {
      const std::int64_t end = kv::end_visible(s.first_position + i, s.both_ways) - s.first_position;
      given.push_back(states.at(static_cast<std::size_t>(end - 1)));
    }
    pages[s.state_out[0]] = state;
  }
  return given;
}

/// As the step launcher does, where a plan of more than `room` rows has none. Gives how many parts it took.
int run_in_parts(const Batch& batch, int room, std::map<kv::BlockId, std::uint64_t>& pages,
                 std::vector<std::uint64_t>& given) {
  const int cut = batch.n_rows() > room ? middle_cut(batch) : 0;
  if (cut == 0) {
    const auto more = run_small(batch, pages);
    given.insert(given.end(), more.begin(), more.end());
    return 1;
  }
  return run_in_parts(part_of(batch, 0, cut), room, pages, given) +
         run_in_parts(part_of(batch, cut, batch.n_rows() - cut), room, pages, given);
}

/// However often a step is cut, each part begins with the state that the one before has left, and each row has all that
/// it sees.
TEST(StepPlanTest, PartsGiveWhatTheWholeGives) {
  std::mt19937_64 random(test::test_seed());
  int apart = 0;
  for (int round = 0; round < 300; ++round) {
    const auto up_to = [&](int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
    Batch batch;
    std::vector<kv::BlockId> ids(8);
    std::iota(ids.begin(), ids.end(), 1);
    std::map<kv::BlockId, std::uint64_t> pages;
    const int n_sequences = up_to(4), longest = up_to(60);
    for (int i = 0; i < n_sequences; ++i) {
      const auto page = [&](int n) { return std::span<const kv::BlockId>(&ids[static_cast<std::size_t>(n)], 1); };
      const bool fresh = random() % 3 == 0, writes_over = random() % 3 == 0;
      BatchSequence s{.n_rows = up_to(longest), .first_position = fresh ? 0 : 7, .tables = {}};
      s.state_out = page(2 * i);
      if (!fresh) s.state_in = writes_over ? s.state_out : page(2 * i + 1);
      if (!fresh) pages[s.state_in[0]] = random();
      for (int at = s.first_position, end = at + s.n_rows; at < end;) {
        const int n = std::min(up_to(20), end - at);
        if (random() % 2 == 0) s.both_ways.push_back({at, at + n});
        at += n;
      }
      for (int row = 0; row < s.n_rows; ++row) batch.rows.emplace_back(up_to(1000));
      batch.sequences.push_back(s);
    }
    std::map<kv::BlockId, std::uint64_t> of_parts = pages;
    std::vector<std::uint64_t> given;
    apart += run_in_parts(batch, up_to(30), of_parts, given) > 1 ? 1 : 0;
    EXPECT_EQ(given, run_small(batch, pages));
    EXPECT_EQ(of_parts, pages);
  }
  EXPECT_GT(apart, 100);
}

TEST(StepPlanTest, CutsInTheMiddle) {
  Batch batch;
  batch.rows.assign(9, 5);
  batch.sequences = {{.n_rows = 9, .first_position = 10, .tables = {}}};
  EXPECT_EQ(middle_cut(batch), 4);
  batch.sequences[0].both_ways = {{12, 18}};
  EXPECT_EQ(middle_cut(batch), 2);
  EXPECT_TRUE(part_of(batch, 0, 2).sequences[0].both_ways.empty());
  EXPECT_EQ(part_of(batch, 2, 7).sequences[0].both_ways.size(), 1U);
  batch.sequences[0].both_ways = {{10, 19}};
  EXPECT_EQ(middle_cut(batch), 0) << "there is no place";
  batch.sequences = {{.n_rows = 7, .first_position = 0, .tables = {}},
                     {.n_rows = 2, .first_position = 0, .tables = {}}};
  batch.sequences[0].both_ways = {{0, 7}};
  EXPECT_EQ(middle_cut(batch), 7) << "two sequences";
}

TEST(StepPlanTest, WantsAllLogits) {
  Batch batch;
  batch.rows.assign(6, 5);
  batch.sequences = {{.n_rows = 1, .first_position = 0, .tables = {}},
                     {.n_rows = 4, .first_position = 0, .tables = {}},
                     {.n_rows = 1, .first_position = 0, .tables = {}}};
  EXPECT_FALSE(wants_all_logits(batch)) << "nothing is wanted";
  batch.sample_rows = {4, 5};
  EXPECT_FALSE(wants_all_logits(batch)) << "a prompt";
  batch.logit_rows = {1, 2, 3};
  EXPECT_TRUE(wants_all_logits(batch)) << "three guesses are verified, and of the first sequence nothing is wanted";
  batch.logit_rows = {1, 3, 4};
  EXPECT_FALSE(wants_all_logits(batch));
  batch.logit_rows = {0, 1, 2, 3, 4, 5};
  EXPECT_TRUE(wants_all_logits(batch)) << "some are drawn from and read";
  batch.hidden_rows = {5};
  EXPECT_FALSE(wants_all_logits(batch));
}

TEST(StepPlanTest, HasRoomForTheGroupWithTheMostHeads) {
  std::vector<AttentionGroup> groups(2);
  groups[0].heads = {.n_head = 4, .n_kv_head = 2, .head_dim = 64};
  groups[1].heads = {.n_head = 2, .n_kv_head = 1, .head_dim = 256};
  EXPECT_EQ(most_heads(groups).heads, 4);
  EXPECT_EQ(most_heads(groups).values, 512);
  const std::size_t of_state = (512 + 2 * 4) * 4;
  EXPECT_EQ(step_limits(64, 8, 4096, groups, 200 * of_state).tree.slots, 200);
}

/// Where they are allowed, embeddings and positions must be whole.
TEST(BatchCheckTest, EmbeddingsAndPositions) {
  const std::vector<kv::BlockId> blocks = {1};
  BatchLimits limits = {.n_vocab = 100,
                        .context = 64,
                        .max_rows = 9,
                        .max_sequences = 3,
                        .block_size = 32,
                        .num_blocks = 3,
                        .n_groups = 1,
                        .embedding_size = 4,
                        .positions = true};
  const std::vector<float> four(4), five(5);
  Batch batch;
  batch.rows = {5, RowSource::embedding(0), RowSource::embedding(1)};
  batch.embeddings = {four, four};
  batch.positions = {{0, 0, 0}, {1, 0, 0}, {1, 0, 1}};
  batch.sequences.push_back({.n_rows = 3, .first_position = 0, .tables = {{blocks, 32}}});
  batch.logit_rows = {0, 1, 2};
  EXPECT_NO_THROW(check_batch(batch, limits)) << "several rows of a sequence may be wanted";
  const auto refused = [&](auto&& spoil) {
    Batch bad = batch;
    spoil(bad);
    EXPECT_THROW(check_batch(bad, limits), StepError);
  };
  refused([&](Batch& b) { b.embeddings[1] = five; });
  refused([](Batch& b) { b.embeddings.pop_back(); });
  refused([](Batch& b) { b.rows[1] = RowSource::embedding(-1); });
  refused([](Batch& b) { b.positions.pop_back(); });
  refused([](Batch& b) { b.positions[2].width = -1; });
  const auto refusal = [&] {
    try {
      check_batch(batch, limits);
    } catch (const StepError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  limits.positions = false;
  EXPECT_EQ(refusal(), "rows have no positions here but their indices");
  batch.positions.clear();
  EXPECT_NO_THROW(check_batch(batch, limits));
  limits.embedding_size = 0;
  EXPECT_EQ(refusal(), "rows can be tokens here, not embeddings");
}

/// Tokens that the step before draws have no number yet, and there are so many of them.
TEST(BatchCheckTest, DrawnTokens) {
  const std::vector<kv::BlockId> blocks = {1, 2};
  const BatchLimits limits = {.n_vocab = 100,
                              .context = 64,
                              .max_rows = 9,
                              .max_sequences = 3,
                              .block_size = 32,
                              .num_blocks = 3,
                              .n_groups = 1,
                              .n_drawn = 2};
  Batch batch;
  batch.rows = {5, -1, 7};
  batch.sequences.push_back({.n_rows = 2, .first_position = 0, .tables = {{std::span(blocks).first(1), 32}}});
  batch.sequences.push_back({.n_rows = 1, .first_position = 0, .tables = {{std::span(blocks).last(1), 32}}});
  batch.sample_rows = {1, 2};
  EXPECT_THROW(check_batch(batch, limits), StepError) << "no token";
  batch.rows[1] = RowSource::drawn(1);
  EXPECT_NO_THROW(check_batch(batch, limits));
  for (const RowSource wrong : {RowSource::drawn(2), RowSource::drawn(-1), RowSource::embedding(0)}) {
    Batch bad = batch;
    bad.rows[1] = wrong;
    EXPECT_THROW(check_batch(bad, limits), StepError);
  }
  for (const std::vector<std::int32_t>& wrong : {std::vector<std::int32_t>{0, 1, 2}, {2, 1}, {3}}) {
    Batch bad = batch;
    bad.sample_rows = wrong;
    EXPECT_THROW(check_batch(bad, limits), StepError);
  }
}

/// Of models whose positions have three parts, also where rows have none but their indices.
TEST(StepPlanTest, PositionsHaveTheirParts) {
  const test::AttentionCase c = test::make_case(
      "two", std::vector<test::Path>{{.length = 40, .n_rows = 2}, {.length = 7, .n_rows = 1}}, 32, {}, 1);
  const auto groups = one_group(c);
  StepPlan plan(step_limits(8, 4, 64, groups, 0), groups, 132, /*position_size=*/3);
  Batch batch = batch_of(c);
  batch.positions.clear();
  const auto positions = [&] {
    EXPECT_TRUE(plan.plan(batch));
    return std::vector(plan.positions().begin(), plan.positions().end());
  };
  const auto at = [&](std::size_t sequence) { return batch.sequences[sequence].first_position; };
  EXPECT_EQ(positions(), (std::vector{at(0), at(0), at(0), at(0) + 1, at(0) + 1, at(0) + 1, at(1), at(1), at(1)}));
  batch.positions = {{5, 6, 7}, {5, 7, 6}, {3, 2, 1}};
  EXPECT_EQ(positions(), (std::vector{5, 6, 7, 5, 7, 6, 3, 2, 1}));
}

/// Whatever little memory partial states have, a row alone fits, so any batch runs in parts.
TEST(StepPlanTest, OneRowAlwaysFits) {
  const test::AttentionCase c =
      test::make_case("long", std::vector<test::Path>{{.length = 40000, .n_rows = 300}}, 32, {}, 1);
  const Batch whole = batch_of(c);
  const auto groups = one_group(c);
  const StepLimits limits = step_limits(300, 8, 40000, groups, 0);
  StepPlan plan(limits, groups, 132);
  EXPECT_FALSE(plan.plan(whole));
  EXPECT_FALSE(plan.plan(part_of(whole, 0, 150)));
  EXPECT_TRUE(plan.plan(part_of(whole, 0, 1)));
  EXPECT_TRUE(plan.plan(part_of(whole, 299, 1)));
  EXPECT_TRUE(StepPlan(step_limits(300, 8, 40000, groups, std::size_t{1} << 30), groups, 132).plan(whole));
}

/// Else the GPU waits for the host between them.
TEST(StepPlanTest, StepsOfALongPromptFitWhole) {
  const attention::HeadShape heads = {.n_head = 32, .n_kv_head = 8, .head_dim = 128, .scale = 0.1F};
  for (const auto& [rows, gpu_gib] : {std::pair{2048, 24}, std::pair{4096, 79}}) {
    test::AttentionCase c =
        test::make_case("prompt", std::vector<test::Path>{{.length = 8192, .n_rows = rows}}, 32, {}, 1);
    c.heads = heads;
    const auto groups = one_group(c);
    const StepLimits limits =
        step_limits(4096, 64, 16384, groups, state_bytes(static_cast<std::size_t>(gpu_gib) << 30));
    StepPlan plan(limits, groups, 132);
    EXPECT_TRUE(plan.plan(batch_of(c))) << rows << " rows on " << gpu_gib << " GiB";
  }
}

TEST(StepPlanTest, CountsSharedBytesOnce) {
  const test::AttentionCase c = test::make_case("shared",
                                                std::vector<test::Path>{{.length = 64, .reads = false},
                                                                        {.parent = 0, .shared = 64, .length = 70},
                                                                        {.parent = 0, .shared = 64, .length = 80}},
                                                32, {}, 1);
  const auto groups = one_group(c);
  StepPlan plan(step_limits(8, 8, 128, groups, 1 << 20), groups, 132);
  ASSERT_TRUE(plan.plan(batch_of(c)));
  EXPECT_EQ(plan.traffic().bytes_unique, (64U + 6 + 16) * 100);
  EXPECT_EQ(plan.traffic().bytes_read, (64U + 32 + 32) * 100) << "whole blocks";
}

}  // namespace
}  // namespace coppice::executor::cuda
