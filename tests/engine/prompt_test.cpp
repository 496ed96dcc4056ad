// Prompts: tokens, embeddings of media, and the positions that follow from grids.
#include "engine/prompt.h"

#include <gtest/gtest.h>

namespace coppice::engine {
namespace {

using executor::RopePosition;

Medium medium(std::int32_t rows, std::int32_t columns, float first) {
  std::vector<float> embeddings;
  for (std::int32_t i = 0; i < 2 * rows; ++i) embeddings.push_back(first + static_cast<float>(i));
  return {.name = {.rows = rows},
          .embeddings = std::make_shared<const std::vector<float>>(std::move(embeddings)),
          .columns = columns};
}

RopePosition line(std::int32_t at) {
  return {at, at, at};
}

TEST(Prompt, TokensHaveTheirIndices) {
  const Prompt prompt = std::vector<kv::Token>{1, 2, 3};
  EXPECT_FALSE(prompt.has_positions());
  EXPECT_EQ(prompt.position(2), line(2));
  EXPECT_EQ(prompt.position(99), line(99));
  EXPECT_EQ(prompt.n_media(), 0U);
}

TEST(Prompt, EachRowOfAMediumHasItsEmbedding) {
  Prompt prompt = std::vector<kv::Token>{1, 2};
  prompt.append(medium(3, 0, 10));
  prompt.append(medium(1, 0, 50));
  EXPECT_EQ(prompt.size(), 6U);
  EXPECT_TRUE(std::ranges::equal(prompt.embedding(2), std::vector<float>{10, 11}));
  EXPECT_TRUE(std::ranges::equal(prompt.embedding(4), std::vector<float>{14, 15}));
  EXPECT_TRUE(std::ranges::equal(prompt.embedding(5), std::vector<float>{50, 51}));
  EXPECT_FALSE(prompt.has_positions());
  EXPECT_EQ(prompt.position(5), line(5));
  ASSERT_EQ(prompt.n_media(), 2U);
  EXPECT_EQ(prompt.medium(0).embeddings->size(), 6U);
  EXPECT_EQ(prompt.medium(1).embeddings->size(), 2U);
}

// A grid is at one time, line by line, and what follows goes on behind its greatest number.
TEST(Prompt, RowsOfAGridHavePositionsOfTheirOwn) {
  Prompt prompt = std::vector<kv::Token>{1, 2};
  prompt.append(medium(6, 3, 0));  // two lines of three
  prompt.append(std::vector<kv::Token>{3});
  prompt.append(medium(6, 2, 0));  // three lines of two
  prompt.append(std::vector<kv::Token>{4, 5});
  EXPECT_TRUE(prompt.has_positions());
  EXPECT_EQ(prompt.position(1), line(1));
  EXPECT_EQ(prompt.position(2), (RopePosition{2, 2, 2}));
  EXPECT_EQ(prompt.position(4), (RopePosition{2, 2, 4}));
  EXPECT_EQ(prompt.position(7), (RopePosition{2, 3, 4}));
  EXPECT_EQ(prompt.position(8), line(5));
  EXPECT_EQ(prompt.position(9), (RopePosition{6, 6, 6}));
  EXPECT_EQ(prompt.position(14), (RopePosition{6, 8, 7}));
  EXPECT_EQ(prompt.position(15), line(9));
  EXPECT_EQ(prompt.position(30), line(24)) << "the answer, too";
}

// As many numbers as rows: what follows has its index, and the rows have not.
TEST(Prompt, AGridThatShiftsNothingStillHasPositions) {
  Prompt prompt;
  prompt.append(medium(4, 4, 0));
  EXPECT_TRUE(prompt.has_positions());
  EXPECT_EQ(prompt.position(3), (RopePosition{0, 0, 3}));
  EXPECT_EQ(prompt.position(4), line(4));
}

}  // namespace
}  // namespace coppice::engine
