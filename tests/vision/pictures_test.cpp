// What is remembered of pictures, of whom, and how they are named.
#include "vision/pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "image/image_file.h"
#include "image/shrink.h"
#include "text/vocabulary.h"
#include "vision/projector.h"

namespace coppice::vision {
namespace {

using testing::HasSubstr;

const std::filesystem::path kFixtures = COPPICE_VISION_FIXTURES;

std::vector<std::uint8_t> file_of(const std::string& name) {
  std::ifstream in(kFixtures / name / "picture.png", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A BMP file of two lines: what its pixels are is easily changed.
std::vector<std::uint8_t> bmp(std::uint8_t grey) {
  std::vector<std::uint8_t> file = {'B', 'M', 78, 0, 0, 0, 0, 0, 0, 0, 54, 0, 0, 0, 40,
                                    0,   0,   0,  2, 0, 0, 0, 2, 0, 0, 0,  1, 0, 24};
  file.resize(54);
  file.resize(54 + 16, grey);
  file[2] = 70;
  return file;
}

constexpr auto by_caller = [] { return Wanted::kByCaller; };

struct World {
  explicit World(const std::string& name, Pictures::Limits limits = {})
      : World(name, limits, std::make_unique<text::Vocabulary>(kFixtures / name / "model.gguf")) {}
  World(const std::string& name, Pictures::Limits limits, std::unique_ptr<text::Vocabulary> its)
      : World(limits, std::make_unique<Projector>(kFixtures / name / "mmproj.gguf", *its,
                                                  name.starts_with("gemma") ? 32 : 64, ProjectorOptions{})) {
    vocabulary = std::move(its);
  }
  World(Pictures::Limits limits, std::unique_ptr<Projector> its) : projector(*its), pictures(std::move(its), limits) {}

  std::shared_ptr<const Picture> look(const std::vector<std::uint8_t>& file, std::string_view owner = "",
                                      std::string_view payer = "") {
    return pictures.look(file, Detail::kAuto, owner, payer).value();
  }
  std::vector<Rows> encode(const std::vector<std::uint8_t>& file, std::string_view owner = "",
                           std::string_view payer = "") {
    Encoding encoding(pictures, file, Detail::kAuto, look(file, owner, payer), owner, payer);
    while (!encoding.step(by_caller).value()) {
    }
    return encoding.rows();
  }

  std::unique_ptr<text::Vocabulary> vocabulary;
  Projector& projector;  ///< of `pictures`
  Pictures pictures;
};

std::vector<kv::Medium> media(const Picture& picture) {
  std::vector<kv::Medium> all;
  for (const auto& part : picture.parts)
    if (const auto* piece = std::get_if<Piece>(&part)) all.push_back(piece->medium);
  return all;
}

TEST(PicturesTest, NamesAreOfPixelsSizeAndPlace) {
  World world("smolvlm");
  const auto picture = world.look(file_of("smolvlm"));
  const auto stretches = media(*picture);
  ASSERT_EQ(stretches.size(), 3U);
  EXPECT_NE(stretches[0].digest, stretches[1].digest);
  EXPECT_EQ(world.pictures.size_text(stretches[2].digest), "128x64");
  World gemma("gemma3");
  const auto dark = media(*gemma.look(bmp(1))), light = media(*gemma.look(bmp(2)));
  EXPECT_NE(dark[0].digest, light[0].digest);
  EXPECT_EQ(dark[0].rows, 16);
  EXPECT_TRUE(dark[0].whole);
  EXPECT_EQ(gemma.pictures.longest_whole(), 16);
  EXPECT_EQ(world.pictures.longest_whole(), 0);
}

TEST(PicturesTest, WhatTheLayoutSaysIsWhatIsEncoded) {
  for (const char* name : {"smolvlm", "gemma3"}) {
    World world(name);
    const auto rows = world.encode(file_of(name));
    const auto names = media(*world.look(file_of(name)));
    ASSERT_EQ(rows.size(), names.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(rows[i]->size(), static_cast<std::size_t>(names[i].rows * world.pictures.embedding_size()));
  }
}

/// As large as the model takes them, and longer one way than its table of positions.
TEST(PicturesTest, NoShapeHasMoreRowsThanTheLongestOrEndsTheProgram) {
  World world("gemma4");
  const int longest = world.pictures.longest_whole();
  EXPECT_GT(longest, 1089);  // what 33 x 33 are
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    const std::uint32_t width = 2000 + random() % 4000, height = width * (1 + random() % 100) / (1 + random() % 100);
    const auto parts = world.projector.layout(width, std::clamp(height, 1U, 20'000U));
    if (!parts) continue;
    for (const auto& part : *parts)
      if (const auto* stretch = std::get_if<Stretch>(&part)) EXPECT_LE(stretch->n_rows, longest);
  }
  const image::Pixels strip{.width = 100, .height = 1600, .rgb = std::vector<std::uint8_t>(100 * 1600 * 3, 90)};
  const auto parts = world.projector.prepare(strip);
  ASSERT_TRUE(parts.has_value());
  for (const auto& part : *parts)
    if (const auto* stretch = std::get_if<Stretch>(&part))
      EXPECT_TRUE(world.projector.encode(*stretch, [] { return false; }).has_value());
}

TEST(PicturesTest, WhatIsForgottenIsDecodedAndEncodedAgain) {
  World world("gemma3");
  const auto rows = world.encode(bmp(7));
  world.pictures.forget();
  EXPECT_EQ(world.pictures.figures().kept_bytes, 0U);
  EXPECT_EQ(*world.encode(bmp(7))[0], *rows[0]);
  EXPECT_EQ(world.pictures.figures().encoded, 2U);
}

TEST(PicturesTest, OneThatComesAgainIsNeitherDecodedNorEncoded) {
  World world("smolvlm");
  const auto rows = world.encode(file_of("smolvlm"));
  const PictureFigures once = world.pictures.figures();
  EXPECT_EQ(once.encoded, 3U);
  EXPECT_EQ(once.found, 0U);
  EXPECT_EQ(world.encode(file_of("smolvlm")), rows);  // the same memory
  const PictureFigures twice = world.pictures.figures();
  EXPECT_EQ(twice.decoded, once.decoded);
  EXPECT_EQ(twice.encoded, 3U);
  EXPECT_EQ(twice.found, 3U);
}

TEST(PicturesTest, WhatIsKeptIsTakenWithoutTheEncoder) {
  World world("smolvlm");
  const auto file = file_of("smolvlm");
  Encoding first(world.pictures, file, Detail::kAuto, world.look(file), "");
  EXPECT_FALSE(first.take_kept());
  const auto rows = world.encode(file);
  Encoding second(world.pictures, file, Detail::kAuto, world.look(file), "");
  EXPECT_TRUE(second.take_kept());
  EXPECT_EQ(second.rows(), rows);
  EXPECT_TRUE(first.take_kept());  // somebody else has encoded them meanwhile
  EXPECT_EQ(first.rows(), rows);
  EXPECT_EQ(world.pictures.figures().encoded, rows.size());
}

TEST(PicturesTest, EncodingEndsWhereItIsUnwantedAndNobodyElseWishesThePicture) {
  World world("gemma3");
  const auto picture = world.look(bmp(7), "one");
  const PictureWish own(world.pictures, *picture, "one"), strangers(world.pictures, *picture, "two");
  const auto file = bmp(7);
  Encoding encoding(world.pictures, file, Detail::kAuto, picture, "one");
  const auto by_others = [] { return Wanted::kByOthers; };
  const auto by_nobody = [] { return Wanted::kByNobody; };
  EXPECT_EQ(encoding.step(by_others), false);
  EXPECT_EQ(world.pictures.figures().encoded, 0U);
  const PictureWish others(world.pictures, *picture, "one");
  EXPECT_EQ(encoding.step(by_nobody), false);
  EXPECT_EQ(world.pictures.figures().encoded, 0U);
  EXPECT_EQ(encoding.step(by_others), true);
}

TEST(PicturesTest, NobodyFindsWhatAnotherHasShown) {
  World world("gemma3");
  const auto rows = world.encode(bmp(7), "one");
  const PictureFigures once = world.pictures.figures();
  const auto others = world.encode(bmp(7), "two");
  EXPECT_EQ(world.pictures.figures().decoded, 2 * once.decoded);
  EXPECT_EQ(world.pictures.figures().encoded, 2 * once.encoded);
  EXPECT_EQ(*others[0], *rows[0]);
  EXPECT_EQ(media(*world.look(bmp(7), "one")), media(*world.look(bmp(7), "two")));  // the cache keeps them apart itself
}

TEST(PicturesTest, KeepsWhatTheBudgetHolds) {
  constexpr std::size_t kRows = 16 * 32 * sizeof(float) + 192;
  World world("gemma3", {.row_bytes = 2 * kRows});
  for (const std::uint8_t grey : {1, 2, 1, 3}) world.encode(bmp(grey));  // 2 goes for 3
  EXPECT_EQ(world.pictures.figures().encoded, 3U);
  world.encode(bmp(1));
  EXPECT_EQ(world.pictures.figures().encoded, 3U);
  world.encode(bmp(2));
  EXPECT_EQ(world.pictures.figures().encoded, 4U);
  EXPECT_LE(world.pictures.figures().kept_bytes, 2 * kRows);
  World without("gemma3", {.row_bytes = 0});
  EXPECT_EQ(*without.encode(bmp(1))[0], *world.encode(bmp(1))[0]);
  EXPECT_EQ(without.pictures.figures().kept_bytes, 0U);
}

TEST(PicturesTest, AKeyThatShowsFewKeepsThem) {
  constexpr std::size_t kRows = 16 * 32 * sizeof(float) + 192;
  World world("gemma3", {.row_bytes = 3 * kRows});
  world.encode(bmp(1), "", "few");
  for (std::uint8_t grey = 2; grey < 10; ++grey) world.encode(bmp(grey), "", "many");
  EXPECT_EQ(world.pictures.figures().encoded, 9U);
  world.encode(bmp(1), "", "few");
  EXPECT_EQ(world.pictures.figures().encoded, 9U);
  world.encode(bmp(8), "", "many");
  EXPECT_EQ(world.pictures.figures().encoded, 9U);
  world.encode(bmp(7), "", "many");
  EXPECT_EQ(world.pictures.figures().encoded, 10U);
}

/// A thread whose turns are short decodes nothing, but finds what is known.
TEST(PicturesTest, SomeThreadsDecodeNothing) {
  World world("gemma3");
  const auto look = [&](std::uint8_t grey) {
    bool refused = false;
    std::thread([&] {
      forbid_decoding_here();
      try {
        world.look(bmp(grey));
      } catch (const NotDecoded&) {
        refused = true;
      }
    }).join();
    return !refused;
  };
  EXPECT_FALSE(look(1));
  world.look(bmp(1));
  EXPECT_TRUE(look(1));
}

TEST(PicturesTest, SaysWhatIsWrongWithAFile) {
  World world("gemma3", {.most_pixels = 100});
  const std::vector<std::uint8_t> text = {'n', 'o'};
  EXPECT_THAT(world.pictures.look(text, Detail::kAuto, "").error(), HasSubstr("is no JPEG"));
  EXPECT_THAT(world.pictures.look(file_of("gemma3"), Detail::kAuto, "").error(), HasSubstr("pixels"));
}

TEST(PicturesTest, LowDetailIsAnotherPictureWhereItIsLarger) {
  World world("gemma3");
  const auto file = bmp(9);
  EXPECT_EQ(media(**world.pictures.look(file, Detail::kLow, "")),
            media(**world.pictures.look(file, Detail::kAuto, "")));
}

TEST(ShrinkTest, EachPixelIsTheMeanOfThoseThatItCovers) {
  const image::Pixels small =
      image::shrink({.width = 4, .height = 2, .rgb = {0,  0, 0, 10, 1, 0, 100, 0, 9, 100, 0, 9,  //
                                                      10, 1, 0, 20, 2, 0, 100, 0, 9, 100, 0, 9}},
                    2);
  EXPECT_EQ(small.width, 2U);
  EXPECT_EQ(small.height, 1U);
  EXPECT_EQ(small.rgb, (std::vector<std::uint8_t>{10, 1, 0, 100, 0, 9}));
  EXPECT_EQ(image::shrink(small, 2).rgb, small.rgb);
  const image::Pixels line = image::shrink({.width = 1000, .height = 1, .rgb = std::vector<std::uint8_t>(3000, 5)}, 10);
  EXPECT_EQ(line.width, 10U);
  EXPECT_EQ(line.height, 1U);
}

}  // namespace
}  // namespace coppice::vision
