// What e2e/test_pull.py can't wait for, or doesn't see: silent servers, and what names of hubs mean.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <stdexcept>
#include <string>

#include "pull/names.h"
#include "pull/web_client.h"

namespace coppice::pull {
namespace {

std::string none(const char* /*name*/) {
  return "";
}

TEST(PullTest, ASilentServerIsSaidToBeOneAndMayBeAskedAgain) {
  boost::asio::io_context io;
  const boost::asio::ip::tcp::endpoint any(boost::asio::ip::address_v4::loopback(), 0);
  const boost::asio::ip::tcp::acceptor silent(io, any);  // the kernel takes the connection
  const server::Url url{.host = "127.0.0.1", .port = silent.local_endpoint().port(), .target = "/"};
  WebClient client(none, 0.2);
  try {
    client.ask({.url = url});
    FAIL() << "it answered";
  } catch (const WebFailure& e) {
    EXPECT_EQ(e.what(), fmt::format("127.0.0.1:{} was silent for 0.2 s.", url.port));
    EXPECT_TRUE(e.again());
    EXPECT_FALSE(e.unreachable());
  }
}

TEST(PullTest, WhereNoWayLeadsToTheFirstServerIsNoOtherTry) {
  boost::asio::io_context io;
  const boost::asio::ip::tcp::endpoint any(boost::asio::ip::address_v4::loopback(), 0);
  const std::uint16_t port = boost::asio::ip::tcp::acceptor(io, any).local_endpoint().port();
  WebClient client(none, 5);
  try {
    client.ask({.url = {.host = "127.0.0.1", .port = port, .target = "/"}});
    FAIL() << "it answered";
  } catch (const WebFailure& e) {
    EXPECT_FALSE(e.again());
    EXPECT_TRUE(e.unreachable());
  }
}

TEST(PullTest, RevisionsWithSlashes) {
  const auto parts = [](const std::string& text) {
    const HubFile file = parse_hub_file(text);
    return fmt::format("{} {} {} {}", file.repo, file.revision, file.file, file.quantization);
  };
  EXPECT_EQ(parts("a/b@refs/pr/1"), "a/b refs/pr/1  ");
  EXPECT_EQ(parts("a/b@refs/pr/1:Q4_0"), "a/b refs/pr/1  Q4_0");
  EXPECT_EQ(parts("a/b@refs/convert/gguf/sub/x.gguf"), "a/b refs/convert/gguf sub/x.gguf ");
  EXPECT_EQ(parts("a/b@v2/x.gguf"), "a/b v2 x.gguf ");
  EXPECT_EQ(parts("a/b@v2/refs/x.gguf"), "a/b v2 refs/x.gguf ");
  EXPECT_EQ(parts("a/b/x@refs/y.gguf"), "a/b main x@refs/y.gguf ");
  for (const char* bad : {"a/b@refs/pr/", "a/b@refs/pr/1/", "a/b@refs/../1", "a/b@refs//1"})
    EXPECT_THROW(parse_hub_file(bad), std::runtime_error) << bad;
  EXPECT_EQ(hub_name("https://huggingface.co/a/b/blob/refs%2Fpr%2F1/x.gguf"), "a/b@refs/pr/1/x.gguf");
  EXPECT_EQ(hub_text({.repo = "a/b", .revision = "refs/pr/1", .file = "x.gguf"}), "hf:a/b@refs/pr/1/x.gguf");
  EXPECT_EQ(encoded_step("refs/pr/1+"), "refs%2Fpr%2F1%2B");
}

}  // namespace
}  // namespace coppice::pull
