// Redis's protocol (RESP 2), as far as a store of pieces needs it. Values go straight to and from where they lie:
// neither side copies them.
//
// Why not hiredis: its reader gathers a value in memory of its own before it gives it out, and has no TLS in Debian 12.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "tier/redis/wire.h"

namespace coppice::tier {

/// Adds a command to `out`.
void add_command(std::string& out, std::initializer_list<std::string_view> arguments);
/// Adds one that keeps a value for so many seconds. The value's bytes follow, and "\r\n".
void add_set_head(std::string& out, std::string_view key, std::string_view seconds, std::size_t value_bytes);

struct Reply {
  enum class Kind : std::uint8_t { kText, kError, kNumber, kValue, kNothing, kList };
  Kind kind = Kind::kNothing;
  std::string text;         ///< kText, kError
  std::int64_t number = 0;  ///< kNumber; kValue: its bytes, which are read next; kList: how many replies follow
  bool is_error() const { return kind == Kind::kError; }
};

/// Reads replies from a wire. Not thread-safe. An error leaves the wire useless.
class ReplyReader {
 public:
  explicit ReplyReader(Wire& wire) : wire_(wire) {}

  /// A reply, or its head.
  WireResult<Reply> next();
  /// The value of a kValue. REQUIRES: into.size() is its number.
  WireResult<void> value(std::span<std::byte> into);
  /// The same, and it is thrown away.
  WireResult<void> skip_value(std::int64_t bytes);
  /// A kValue as text, of at most `most` bytes.
  WireResult<std::string> short_value(std::int64_t bytes, std::size_t most = 4096);

 private:
  WireResult<std::string> line();
  WireResult<void> end_of_value();
  WireResult<void> more();

  Wire& wire_;
  std::array<std::byte, 16384> buffer_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace coppice::tier
