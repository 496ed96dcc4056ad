// A projector that gets no memory: libmtmd says only that something failed. It is no fault of the picture, and the next
// one is encoded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "image/image_file.h"
#include "support/failing_new.h"
#include "text/vocabulary.h"
#include "vision/projector.h"

namespace coppice::vision {
namespace {

using coppice::testing::allocation_failed;
using coppice::testing::Counting;
using coppice::testing::fail_allocation;

const std::filesystem::path kFixture = std::filesystem::path(COPPICE_VISION_FIXTURES) / "gemma3";

image::Pixels picture() {
  std::ifstream in(kFixture / "picture.png", std::ios::binary);
  const std::vector<char> file{std::istreambuf_iterator<char>(in), {}};
  return image::decode({reinterpret_cast<const std::uint8_t*>(file.data()), file.size()}, 1 << 20).value();
}

std::optional<std::vector<float>> rows_of(Projector& projector, const image::Pixels& pixels) {
  const auto parts = projector.prepare(pixels);
  if (!parts) return std::nullopt;
  for (const auto& part : *parts)
    if (const auto* stretch = std::get_if<Stretch>(&part)) return projector.encode(*stretch, [] { return false; });
  return std::nullopt;
}

TEST(ProjectorWithoutMemory, SaysSoAndGoesOn) {
  const text::Vocabulary vocabulary(kFixture / "model.gguf");
  Projector projector(kFixture / "mmproj.gguf", vocabulary, 32, {});
  const image::Pixels pixels = picture();
  const auto expected = rows_of(projector, pixels);
  ASSERT_TRUE(expected);
  int n = 0, told = 0;
  // Each of the first ones, then one in seven: what a graph is made of takes hundreds.
  do {
    n += n < 100 ? 1 : 7;
    SCOPED_TRACE("allocation " + std::to_string(n));
    fail_allocation(n);
    try {
      const Counting counting;
      const auto rows = rows_of(projector, pixels);
      EXPECT_TRUE(rows) << "as if the picture were at fault";
    } catch (const std::bad_alloc&) {
      ++told;
    } catch (const std::runtime_error& e) {  // what failed may have had no memory for a reason
      EXPECT_THAT(e.what(), ::testing::HasSubstr("the projector failed"));
      ++told;
    }
    const bool failed = allocation_failed();
    fail_allocation(0);
    EXPECT_EQ(rows_of(projector, pixels), expected);
    if (HasFailure() || !failed) break;
  } while (true);
  EXPECT_GT(told, 20);
}

}  // namespace
}  // namespace coppice::vision
