#include "server/base/request_error.h"

#include <fmt/format.h>

#include <utility>

#include "port/zero_bytes.h"

namespace coppice::server {

namespace {

constexpr std::size_t kKept = 200;  // bytes of each end

/// Cuts between characters.
std::string without_middle(const std::string& text) {
  if (text.size() <= 2 * kKept) return text;
  const auto in_character = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80; };
  std::size_t head = kKept, tail = text.size() - kKept;
  while (head > 0 && in_character(head)) --head;
  while (tail < text.size() && in_character(tail)) ++tail;
  return text.substr(0, head) + "..." + text.substr(tail);
}

}  // namespace

RequestError::RequestError(int status, const std::string& message, std::string field, std::string code, Kind kind)
    : std::runtime_error(without_middle(port::without_zeros(message))),
      status_(status),
      kind_(kind),
      field_(std::move(field)),
      code_(std::move(code)) {}

RequestError RequestError::bad_field(const std::string& name, const std::string& message, const std::string& code) {
  return {400, fmt::format("'{}': {}", name, message), name, code};
}

RequestError RequestError::unsupported(const std::string& name, const std::string& message) {
  return {400, fmt::format("'{}': {}", name, message.empty() ? "not supported by this server yet" : message), name,
          "unsupported_parameter"};
}

RequestError RequestError::unavailable(const std::string& message, int retry_after_s) {
  RequestError error{503, message, "", "unavailable", Kind::kUnavailable};
  error.retry_after_s_ = retry_after_s;
  return error;
}

RequestError RequestError::shutting_down() {
  return unavailable("The server is shutting down.");
}

RequestError RequestError::server_error(int status, const std::string& message, const std::string& code) {
  return {status, message, "", code, Kind::kServer};
}

RequestError RequestError::queue_full(const std::string& message, int retry_after_s) {
  RequestError error{429, message, "", "queue_full", Kind::kRateLimited};
  error.retry_after_s_ = retry_after_s;
  return error;
}

}  // namespace coppice::server
