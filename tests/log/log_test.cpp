#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>

#include "log/one_line.h"
#include "log/stderr_sink.h"

namespace coppice::log {
namespace {

TEST(OneLineTest, TextStaysAsItIs) {
  EXPECT_EQ(one_line("größer, 水, \xf0\x9f\x8c\xb3 \\n \"x\""), "größer, 水, \xf0\x9f\x8c\xb3 \\n \"x\"");
}

TEST(OneLineTest, WhatMovesACursorOrALineIsEscaped) {
  EXPECT_EQ(one_line("a\nb\r\t\x1b[31m\x7f"), "a\\nb\\x0d\\x09\\x1b[31m\\x7f");
  EXPECT_EQ(one_line("\xc2\x9b"
                     "31m \xe2\x80\xae"
                     "evil \xe2\x80\xa8 \xe2\x81\xa6"),
            "\\u{9b}31m \\u{202e}evil \\u{2028} \\u{2066}");
  EXPECT_EQ(one_line(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(one_line("a\xe2\x80\x8b\xef\xbb\xbf\xf3\xa0\x81\xa1"), "a\\u{200b}\\u{feff}\\u{e0061}")
      << "what nobody sees";
}

TEST(OneLineTest, BytesThatAreNoTextAreEscaped) {
  EXPECT_EQ(one_line("\xff \xc3"), "\\xff \\xc3");
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(one_line("\xc0\xaf \xf8"), "\\xc0\\xaf \\xf8") << "longer than it need be";
}

class StderrSinkTest : public ::testing::Test {
 protected:
  StderrSinkTest() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    logger_ = std::make_unique<spdlog::logger>("test", std::make_shared<StderrSink>(ends_[1]));
    logger_->set_pattern("%l %v");
  }
  ~StderrSinkTest() override {
    for (const int end : ends_) close(end);
  }
  std::string read_now() const {
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    std::string all, some(1 << 16, '\0');
    for (ssize_t n = 0; (n = read(ends_[0], some.data(), some.size())) > 0;)
      all.append(some, 0, static_cast<std::size_t>(n));
    return all;
  }

  std::array<int, 2> ends_{};
  std::unique_ptr<spdlog::logger> logger_;
};

TEST_F(StderrSinkTest, ForeignTextMakesNoSecondLine) {
  logger_->warn("the model is {}", "x\nerror all is lost");
  EXPECT_EQ(read_now(), "warning the model is x\\nerror all is lost\n");
}

TEST_F(StderrSinkTest, AReaderThatDoesNotReadStopsNobody) {
  const std::string line(3000, 'x');
  for (int i = 0; i < 1000; ++i) logger_->info(line);  // a pipe holds 64 KiB
  const std::string first = read_now();
  EXPECT_LT(first.size(), std::size_t{1} << 20);
  logger_->info("again");
  const std::string then = read_now();
  const auto kept = static_cast<int>(first.size() / (line.size() + 6));
  EXPECT_EQ(then, "coppice: " + std::to_string(1000 - kept) +
                      " lines of the log were lost: their reader was slow\ninfo again\n");
}

TEST_F(StderrSinkTest, ALongLineIsCutBetweenCharacters) {
  std::string line;
  for (int i = 0; i < 3000; ++i) line += "水";
  logger_->info(line);
  const std::string read = read_now();
  EXPECT_LE(read.size(), 4000U);
  EXPECT_TRUE(read.ends_with("水...\n"));
}

TEST_F(StderrSinkTest, APipeWithoutAReaderStopsNobody) {
  signal(SIGPIPE, SIG_IGN);
  close(ends_[0]);
  for (int i = 0; i < 100; ++i) logger_->info("nobody reads this");
  ends_[0] = dup(ends_[1]);
}

}  // namespace
}  // namespace coppice::log
