#include "server/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "server/http.h"
#include "server/json.h"

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

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code, std::string type)
    : std::runtime_error(without_middle(message)),
      status_(status),
      type_(std::move(type)),
      param_(std::move(param)),
      code_(std::move(code)) {}

ApiError ApiError::field(const std::string& name, const std::string& message, const std::string& code) {
  return {400, fmt::format("'{}': {}", name, message), name, code};
}

ApiError ApiError::unsupported(const std::string& name, const std::string& message) {
  return {400, fmt::format("'{}': {}", name, message.empty() ? "not supported by this server yet" : message), name,
          "unsupported_parameter"};
}

ApiError ApiError::unavailable(const std::string& message) {
  ApiError error{503, message, "", "unavailable", "unavailable_error"};
  error.retry_after_s_ = 1;
  return error;
}

ApiError ApiError::shutting_down() {
  return unavailable("The server is shutting down.");
}

ApiError ApiError::server_error(int status, const std::string& message, const std::string& code) {
  return {status, message, "", code, "server_error"};
}

ApiError ApiError::queue_full(const std::string& message, int retry_after_s) {
  ApiError error{429, message, "", "queue_full", "rate_limit_error"};
  error.retry_after_s_ = retry_after_s;
  return error;
}

std::string ApiError::json() const {
  const auto or_null = [](const std::string& s) { return s.empty() ? Json(nullptr) : Json(s); };
  JsonObject error = {{"message", what()}, {"type", type_}, {"param", or_null(param_)}, {"code", or_null(code_)}};
  return dump(JsonObject{{"error", std::move(error)}});
}

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status(), .body = error.json()};
  if (const auto seconds = error.retry_after_s()) reply.headers.emplace_back("Retry-After", std::to_string(*seconds));
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

}  // namespace coppice::server
