// Which device is chosen: with the part for GPUs missing, broken, of another version or build, without GPUs, and with
// two.
#include "cli/devices.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/gguf_writer.h"

namespace coppice::cli {
namespace {

using ::testing::HasSubstr;

class DevicesTest : public ::testing::Test {
 protected:
  /// A folder whose program finds such a module beside it.
  static std::filesystem::path with_module(const std::string& kind) {
    const auto folder = test::scratch_folder() / kind;
    std::filesystem::create_directories(folder);
    if (kind == "broken") std::ofstream(folder / "libcoppice_cuda.so") << "no library";
    const std::filesystem::path built = fmt::format("{}/libfake_cuda_{}.so", FAKES, kind);
    if (std::filesystem::exists(built)) {
      std::filesystem::copy_file(built, folder / "libcoppice_cuda.so", std::filesystem::copy_options::skip_existing);
    }
    return folder;
  }
  static std::string why_not(const std::string& wanted, const std::filesystem::path& folder,
                             const executor::GgmlOptions& options = {}) {
    try {
      choose_device(wanted, {}, options, folder);
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "chosen";
  }
};

TEST_F(DevicesTest, ValuesOfTheOption) {
  for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:15"}) EXPECT_EQ(check_device(good), "") << good;
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "cuda0"})
    EXPECT_THAT(check_device(bad), HasSubstr("is no device")) << bad;
}

TEST_F(DevicesTest, WithoutAGpuAutoIsTheCpuAndCudaSaysWhy) {
  for (const char* kind : {"missing", "broken", "other", "stale", "none"}) {
    EXPECT_FALSE(choose_device("auto", {}, {}, with_module(kind)).is_gpu()) << kind;
    EXPECT_FALSE(choose_device("cpu", {}, {}, with_module(kind)).is_gpu()) << kind;
  }
  EXPECT_THAT(why_not("cuda", with_module("missing")),
              "--device cuda can't be had: the part for NVIDIA GPUs (libcoppice_cuda.so) is not installed.");
  EXPECT_THAT(why_not("cuda", with_module("broken")), HasSubstr("libcoppice_cuda.so can't be loaded"));
  EXPECT_THAT(why_not("cuda", with_module("other")), HasSubstr("is of build 0.0, this program of "));
  EXPECT_THAT(why_not("cuda", with_module("stale")), HasSubstr("x, this program of "));
  EXPECT_THAT(why_not("cuda:1", with_module("none")),
              "--device cuda:1 can't be had: there is no NVIDIA driver, or it is too old.");
}

// The loader would map what is there, and the process would end where it reads on.
TEST_F(DevicesTest, ACopyThatBrokeOffIsNotLoaded) {
  const auto whole = with_module("two") / "libcoppice_cuda.so";
  const auto folder = test::scratch_folder() / "cut";
  std::filesystem::create_directories(folder);
  for (const std::uintmax_t missing :
       {std::uintmax_t{1}, std::uintmax_t{4096}, std::filesystem::file_size(whole) / 2}) {
    const auto file = folder / "libcoppice_cuda.so";
    std::filesystem::copy_file(whole, file, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(file, std::filesystem::file_size(whole) - missing);
    EXPECT_FALSE(choose_device("auto", {}, {}, folder).is_gpu());
    EXPECT_THAT(why_not("cuda", folder), HasSubstr("libcoppice_cuda.so is not whole"));
  }
}

TEST_F(DevicesTest, TheNumberIsCudasOwn) {
  const auto folder = with_module("two");
  EXPECT_EQ(choose_device("auto", {}, {}, folder).text(), "GPU 1 (first)");
  EXPECT_EQ(choose_device("cuda", {}, {}, folder).text(), "GPU 1 (first)");
  EXPECT_EQ(choose_device("cuda:3", {}, {}, folder).text(), "GPU 3 (second)");
  EXPECT_EQ(choose_device("cpu", {}, {}, folder).text(), "the CPU");
  EXPECT_THAT(why_not("cuda:0", folder), HasSubstr("there is no GPU 0; there are: 1, 3"));
}

TEST_F(DevicesTest, AModelOrAnOptionThatAGpuCantServeGoesToTheCpuUnlessAGpuIsWanted) {
  const auto folder = with_module("two");
  model::Model misfit;
  misfit.spec.name = "misfit";
  EXPECT_FALSE(choose_device("auto", misfit, {}, folder).is_gpu());
  EXPECT_TRUE(choose_device("cuda", misfit, {}, folder).is_gpu());  // the loader refuses it, with what it can run
  EXPECT_FALSE(choose_device("auto", {}, {.attention = "gather"}, folder).is_gpu());
  EXPECT_EQ(why_not("cuda", folder, {.attention = "gather"}), "--device cuda has no --attention gather.");
  EXPECT_EQ(why_not("cuda", folder, {.kv_format = "turbo4"}), "--device cuda has no --kv-format turbo4.");
  EXPECT_EQ(why_not("cuda", folder, {.block_size = 16}), "--device cuda has no --block-size 16.");
}

TEST_F(DevicesTest, OptionsReachTheModule) {
  const Device device = choose_device("cuda:3", {}, {}, with_module("two"));
  try {
    device.load({}, {.kv_format = "int8", .max_rows = 77}, {});
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "GPU 3, int8, rows 77");
  }
}

using DevicesDeathTest = DevicesTest;

TEST_F(DevicesDeathTest, ALostGpuEndsTheProcessWithOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Device device = choose_device("cuda:3", {}, {}, with_module("two"));
  EXPECT_EXIT(device.load({}, {.kv_format = "lost"}, {}), ::testing::ExitedWithCode(70),
              "^coppice: GPU 3 is lost: its fan fell off. The process ends.\n$");
}

}  // namespace
}  // namespace coppice::cli
