// The writer's bytes, read by another one's reader, and the lengths at which forms change.
#include "events/msgpack_writer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace coppice::events {
namespace {

using nlohmann::json;

template <class Write>
std::string written(Write write) {
  MsgpackWriter out;
  write(out);
  return out.take();
}

TEST(MsgpackWriterTest, WritesNumbersInTheirShortestForm) {
  const struct {
    std::uint64_t value;
    std::size_t bytes;
  } cases[] = {{0, 1},      {127, 1},    {128, 2},        {255, 2},         {256, 3},
               {65'535, 3}, {65'536, 5}, {0xffffffff, 5}, {0x100000000, 9}, {~std::uint64_t{0}, 9}};
  for (const auto& [value, bytes] : cases) {
    const std::string got = written([v = value](MsgpackWriter& out) { out.number(v); });
    EXPECT_EQ(got.size(), bytes) << value;
    EXPECT_EQ(json::from_msgpack(got).get<std::uint64_t>(), value);
  }
  const struct {
    std::int64_t value;
    std::size_t bytes;
  } negative[] = {{-1, 1},
                  {-32, 1},
                  {-33, 2},
                  {-128, 2},
                  {-129, 3},
                  {-32'768, 3},
                  {-32'769, 5},
                  {std::numeric_limits<std::int32_t>::min(), 5},
                  {std::numeric_limits<std::int64_t>::min(), 9}};
  for (const auto& [value, bytes] : negative) {
    const std::string got = written([v = value](MsgpackWriter& out) { out.signed_number(v); });
    EXPECT_EQ(got.size(), bytes) << value;
    EXPECT_EQ(json::from_msgpack(got).get<std::int64_t>(), value);
  }
}

TEST(MsgpackWriterTest, WritesLengthsAtTheirBorders) {
  for (const std::size_t n : {0, 15, 16, 31, 32, 255, 256, 65'535, 65'536}) {
    const std::string text(n, 'x');
    EXPECT_EQ(json::from_msgpack(written([&](MsgpackWriter& out) { out.text(text); })), text) << n;
    const std::string list = written([n](MsgpackWriter& out) {
      out.array(n);
      for (std::size_t i = 0; i < n; ++i) out.nil();
    });
    EXPECT_EQ(json::from_msgpack(list).size(), n);
    const std::string pairs = written([n](MsgpackWriter& out) {
      out.map(n);
      for (std::size_t i = 0; i < n; ++i) {
        out.text(std::to_string(i));
        out.number(i);
      }
    });
    EXPECT_EQ(json::from_msgpack(pairs).size(), n);
  }
}

TEST(MsgpackWriterTest, WritesRealsIn64Bits) {
  EXPECT_EQ(written([](MsgpackWriter& out) { out.real(1.5); }), std::string("\xcb\x3f\xf8\0\0\0\0\0\0", 9));
}

}  // namespace
}  // namespace coppice::events
