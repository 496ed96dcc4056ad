// Image files of every kind, against the pixels that the Pillow package reads from them
// (tests/fixtures/make_images.py).
#include "image/image_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace coppice::image {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPlenty = 1 << 20;
const std::filesystem::path kFolder = COPPICE_IMAGES;

using File = std::vector<std::uint8_t>;

File read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".json") names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::uint8_t> bytes_of(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string complaint(const File& file, std::uint64_t most_pixels = kPlenty) {
  const auto pixels = decode(file, most_pixels);
  return pixels ? "none" : pixels.error();
}

TEST(ImageFileTest, EveryKindHasThePixelsThatPillowReads) {
  const auto expected = nlohmann::json::parse(std::ifstream(kFolder / "expected.json"));
  ASSERT_EQ(expected.size(), names().size());
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    const auto pixels = decode(read(kFolder / name), kPlenty);
    ASSERT_TRUE(pixels.has_value()) << pixels.error();
    ASSERT_EQ(pixels->width, expected[name]["width"]);
    ASSERT_EQ(pixels->height, expected[name]["height"]);
    const auto rgb = bytes_of(expected[name]["rgb"]);
    ASSERT_EQ(pixels->rgb.size(), rgb.size());
    const bool exact = !name.ends_with(".jpg") && !name.starts_with("lossy");
    int farthest = 0;
    for (std::size_t i = 0; i < rgb.size(); ++i) farthest = std::max(farthest, std::abs(pixels->rgb[i] - rgb[i]));
    EXPECT_LE(farthest, exact ? 1 : 3);  // 1: rounding where alpha is blended, or 16 bits become 8
  }
}

TEST(ImageFileTest, HeadSaysTheSizeBeforeAnythingIsUnpacked) {
  const auto head = read_head(read(kFolder / "rgb.png"));
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->format, Format::kPng);
  EXPECT_EQ(head->width, 13U);
  EXPECT_EQ(head->height, 9U);
}

TEST(ImageFileTest, MorePixelsThanAllowedAreRefusedByTheHead) {
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    EXPECT_THAT(complaint(read(kFolder / name), 116), HasSubstr(" pixels, and 116 is the most"));
    EXPECT_EQ(complaint(read(kFolder / name), 117), "none");
  }
}

/// The sizes of a small file become 20,000 x 20,000: where the head is, and how it writes them.
TEST(ImageFileTest, BombsAreRefused) {
  const auto with_size = [](const char* name, std::size_t at, std::vector<std::uint8_t> size) {
    File file = read(kFolder / name);
    std::ranges::copy(size, file.begin() + static_cast<std::ptrdiff_t>(at));
    return file;
  };
  const File gif = with_size("palette.gif", 6, {0x20, 0x4E, 0x20, 0x4E});
  EXPECT_THAT(complaint(gif), HasSubstr("20000 x 20000 pixels"));
  const File bmp = with_size("rgb.bmp", 18, {0x20, 0x4E, 0, 0, 0x20, 0x4E, 0, 0});
  EXPECT_THAT(complaint(bmp), HasSubstr("20000 x 20000 pixels"));
  File jpeg = read(kFolder / "rgb.jpg");
  const std::uint8_t frame[] = {0xFF, 0xC0};
  const auto at = std::ranges::search(jpeg, frame).begin();
  ASSERT_NE(at, jpeg.end());
  const std::uint8_t size[] = {0x4E, 0x20, 0x4E, 0x20};
  std::ranges::copy(size, at + 5);
  EXPECT_THAT(complaint(jpeg), HasSubstr("20000 x 20000 pixels"));
}

TEST(ImageFileTest, FilesThatEndEarlyAreRefused) {
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    const File file = read(kFolder / name);
    const auto whole = decode(file, kPlenty);
    for (std::size_t n = 0; n < file.size(); ++n) {
      const auto cut = decode(std::span(file).first(n), kPlenty);
      // The last bytes may be no part of the picture (a checksum, a second frame).
      if (cut) EXPECT_EQ(cut->rgb, whole->rgb) << n << " of " << file.size();
      if (n < file.size() / 3) EXPECT_FALSE(cut.has_value()) << n << " of " << file.size();
    }
  }
}

TEST(ImageFileTest, JpegFilesThatLackDataAreRefusedWhateverMarkIsAtTheirEnd) {
  const File file = read(kFolder / "rgb.jpg");
  File cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(file.size() * 9 / 10));
  cut.insert(cut.end(), {0xFF, 0xD9});
  EXPECT_EQ(complaint(cut), "is a JPEG file that ends early");
  cut.assign(file.begin(), file.begin() + 20);  // ahead of its size
  cut.insert(cut.end(), {0xFF, 0xD9});
  EXPECT_EQ(complaint(cut), "is a JPEG file that ends early");
  File more = file;  // what a camera puts between segments harms nobody
  more.insert(more.begin() + 20, {0, 0, 0});
  EXPECT_EQ(complaint(more), "none");
}

TEST(ImageFileTest, WhatIsNoImageIsRefusedInWords) {
  EXPECT_EQ(complaint({}), "is empty");
  EXPECT_EQ(complaint({'h', 'e', 'l', 'l', 'o'}), "is no JPEG, PNG, WebP, GIF or BMP file");
  EXPECT_EQ(complaint({'<', 's', 'v', 'g', '>'}), "is no JPEG, PNG, WebP, GIF or BMP file");
  File compressed = read(kFolder / "palette.bmp");
  compressed[30] = 1;
  EXPECT_EQ(complaint(compressed), "is a compressed BMP file, which is not read");
  File huge = read(kFolder / "small_frame.gif");
  const std::uint8_t frame[] = {0x2C, 3, 0, 2, 0};
  const auto at = std::ranges::search(huge, frame).begin();
  ASSERT_NE(at, huge.end());
  at[5] = 14;
  EXPECT_EQ(complaint(huge), "is a GIF file whose first frame is larger than its canvas");
}

TEST(ImageFileTest, DamagedFilesGiveAPictureOfTheStatedSizeOrAnError) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (const std::string& name : names()) {
    SCOPED_TRACE(name);
    const File file = read(kFolder / name);
    for (int round = 0; round < 200; ++round) {
      File damaged = file;
      for (int i = 0; i < 1 + round % 4; ++i) damaged[random() % damaged.size()] = static_cast<std::uint8_t>(random());
      const auto pixels = decode(damaged, kPlenty);
      if (pixels) ASSERT_EQ(pixels->rgb.size(), std::size_t{3} * pixels->width * pixels->height);
    }
  }
}

}  // namespace
}  // namespace coppice::image
