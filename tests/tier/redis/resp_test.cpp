// The protocol's reader, in pieces of any length, and of what is no protocol; addresses.
#include "tier/redis/resp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "support/dice.h"
#include "tier/redis/redis_url.h"

namespace coppice::tier {
namespace {

class TextWire final : public Wire {
 public:
  TextWire(std::string text, std::uint64_t seed) : text_(std::move(text)), dice_(seed) {}
  WireResult<void> send(std::span<const std::byte>) override { return {}; }
  WireResult<std::size_t> receive(std::span<std::byte> into) override {
    if (text_.empty()) return std::unexpected("ended the connection");
    const auto most = static_cast<std::int64_t>(std::min(into.size(), text_.size()));
    const auto n =
        static_cast<std::size_t>(dice_.chance(20) ? most : dice_.between(1, std::min<std::int64_t>(most, 9)));
    std::memcpy(into.data(), text_.data(), n);
    text_.erase(0, n);
    return n;
  }

 private:
  std::string text_;
  test::Dice dice_;
};

TEST(ReplyReader, ReadsRepliesHoweverTheyCome) {
  const std::string long_value(50'000, 'v');
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    TextWire wire("+OK\r\n-ERR no\r\n:-12\r\n$-1\r\n$5\r\na\r\nbc\r\n$50000\r\n" + long_value +
                      "\r\n$3\r\nabc\r\n*2\r\n:1\r\n:2\r\n",
                  seed);
    ReplyReader reader(wire);
    EXPECT_EQ(reader.next()->text, "OK");
    EXPECT_TRUE(reader.next()->is_error());
    EXPECT_EQ(reader.next()->number, -12);
    EXPECT_EQ(reader.next()->kind, Reply::Kind::kNothing);
    EXPECT_EQ(reader.short_value(reader.next()->number), "a\r\nbc");
    std::string value(static_cast<std::size_t>(reader.next()->number), ' ');
    ASSERT_TRUE(reader.value(std::as_writable_bytes(std::span(value))));
    EXPECT_EQ(value, long_value);
    EXPECT_TRUE(reader.skip_value(reader.next()->number));
    EXPECT_EQ(reader.next()->number, 2);
    EXPECT_EQ(reader.next()->number + reader.next()->number, 3);
    EXPECT_FALSE(reader.next());
  }
}

TEST(ReplyReader, RefusesWhatIsNoReply) {
  for (const std::string text :
       {"HTTP/1.1 200 OK\r\n", "$-2\r\n", "$99999999999\r\n", ":1x\r\n", ":\r\n", "\r\n", "*5000000\r\n"}) {
    TextWire wire(text, 1);
    EXPECT_FALSE(ReplyReader(wire).next()) << text;
  }
  TextWire endless(std::string(5000, '+'), 1);
  EXPECT_FALSE(ReplyReader(endless).next());
  TextWire longer("$3\r\nabcd\r\n", 1);
  ReplyReader reader(longer);
  EXPECT_FALSE(reader.short_value(reader.next()->number));
}

TEST(ReplyReader, AnyBytesEnd) {
  test::Dice dice(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text(static_cast<std::size_t>(dice.below(200)), ' ');
    static constexpr std::string_view kBytes = "+-:$*\r\n0123456789ab";
    for (char& c : text) c = kBytes[static_cast<std::size_t>(dice.below(kBytes.size()))];
    TextWire wire(text, static_cast<std::uint64_t>(i));
    ReplyReader reader(wire);
    for (auto reply = reader.next(); reply; reply = reader.next()) {
      if (reply->kind == Reply::Kind::kValue && !reader.skip_value(reply->number)) break;
    }
  }
}

TEST(RedisUrl, SaysWhereAServerIs) {
  const auto plain = parse_redis_url("redis://cache.local:6380/3");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->host + ":" + std::to_string(plain->port) + "/" + std::to_string(plain->db), "cache.local:6380/3");
  EXPECT_FALSE(plain->tls);
  EXPECT_TRUE(parse_redis_url("rediss://[::1]")->tls);
  EXPECT_EQ(parse_redis_url("rediss://[::1]:7000/")->host, "::1");
  EXPECT_EQ(parse_redis_url("redis://h")->port, 6379);
  for (const char* url : {"http://h", "redis://", "redis://h:0", "redis://h:x", "redis://h:70000", "redis://h/x",
                          "redis://[::1", "redis://[::1]x", "redis://user:secret@h"})
    EXPECT_FALSE(parse_redis_url(url)) << url;
}

}  // namespace
}  // namespace coppice::tier
