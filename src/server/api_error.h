// ApiError: an answer in OpenAI's error form: {"error": {"message", "type", "param", "code"}}.
//
// Its message may quote what a client sent, of any size: what is long loses its middle.
//
// A value; thrown by parsing and by handlers, caught in one place (api.cpp).
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

namespace coppice::server {

class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "",
           std::string type = "invalid_request_error");

  /// 400 for one field.
  static ApiError field(const std::string& name, const std::string& message, const std::string& code = "invalid_value");
  /// 400 for a field that OpenAI knows and this server doesn't have yet.
  static ApiError unsupported(const std::string& name, const std::string& message = "");
  /// 503: loading, draining, stopped.
  static ApiError unavailable(const std::string& message);
  static ApiError shutting_down();
  /// 500, 504: not the client's fault.
  static ApiError server_error(int status, const std::string& message, const std::string& code = "");
  /// 429 with Retry-After.
  static ApiError queue_full(const std::string& message, int retry_after_s = 1);

  int status() const { return status_; }
  const std::string& param() const { return param_; }  ///< empty: null
  const std::string& code() const { return code_; }    ///< empty: null
  std::optional<int> retry_after_s() const { return retry_after_s_; }

  /// The body: one line of JSON.
  std::string json() const;

 private:
  int status_;
  std::string type_, param_, code_;
  std::optional<int> retry_after_s_;
};

struct HttpReply;
/// With Retry-After where the error says when to come back, and what a 401 must have.
HttpReply error_reply(const ApiError& error);

}  // namespace coppice::server
