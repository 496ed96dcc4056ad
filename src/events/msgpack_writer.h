// MsgpackWriter: writes MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), each value in its
// shortest form. Not thread safe.
//
// As of Debian 12 no library for it can be installed beside Boost 1.81, or it wants every value in a tree of its own
// first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace coppice::events {

class MsgpackWriter {
 public:
  void nil() { byte(0xc0); }
  void number(std::uint64_t value);
  void signed_number(std::int64_t value);
  void real(double value);            ///< 64 bits
  void text(std::string_view value);  ///< UTF-8
  void array(std::size_t n);          ///< n values follow
  void map(std::size_t n);            ///< n pairs follow

  std::string take() { return std::move(bytes_); }

 private:
  void byte(std::uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  /// Big-endian, after a byte that says so.
  void with_tail(std::uint8_t first, std::uint64_t value, int bytes);
  void length(std::size_t n, std::uint8_t of_16_bits);

  std::string bytes_;
};

}  // namespace coppice::events
