// RequestError: why a request is refused, or ends without its answer. Dialects turn it into their own words.
//
// Its message may quote what a client sent, of any size: a long one loses its middle.
//
// A value, for any thread. Thrown by parsing and by handlers, caught in one place (server/api/api.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace coppice::server {

class RequestError : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t {
    kInvalid,      ///< the client's fault: asking again won't help
    kUnavailable,  ///< not now: loading, draining, no room
    kRateLimited,  ///< too much is asked at once: later it works
    kServer,       ///< the server's fault
  };

  /// `status`: HTTP's, 400 to 599. `message`: a sentence for people. `field`: of the request, as the client calls it;
  /// empty: none. `code`: for programs (docs/api.md, "Errors"); empty: none.
  RequestError(int status, const std::string& message, std::string field = "", std::string code = "",
               Kind kind = Kind::kInvalid);

  // The usual ones. Of the first two the message goes on after the field's name: "must be a string".

  /// 400 for one field.
  static RequestError bad_field(const std::string& name, const std::string& message,
                                const std::string& code = "invalid_value");
  /// 400 for a field that this server doesn't have yet; an empty message says just that.
  static RequestError unsupported(const std::string& name, const std::string& message = "");
  /// 503: loading, draining, stopped; worth asking again after so many seconds.
  static RequestError unavailable(const std::string& message, int retry_after_s = 1);
  static RequestError shutting_down();
  /// 500, 503, 504: not the client's fault.
  static RequestError server_error(int status, const std::string& message, const std::string& code = "");
  /// 429, worth asking again after so many seconds.
  static RequestError queue_full(const std::string& message, int retry_after_s = 1);

  int status() const { return status_; }
  Kind kind() const { return kind_; }
  const std::string& field() const { return field_; }
  const std::string& code() const { return code_; }
  /// Of a prompt that doesn't fit: tokens that it has at least, and that the context holds.
  struct Sizes {
    std::int64_t tokens = 0, context = 0;
  };
  const std::optional<Sizes>& sizes() const { return sizes_; }
  void set_sizes(Sizes sizes) { sizes_ = sizes; }
  /// Of the request that it ends, as its reply's head has it; empty: not known.
  const std::string& request_id() const { return request_id_; }
  void set_request_id(std::string id) { request_id_ = std::move(id); }
  /// Seconds until it is worth asking again; none: that is not known.
  std::optional<int> retry_after_s() const { return retry_after_s_; }

 private:
  int status_;
  Kind kind_;
  std::string field_, code_, request_id_;
  std::optional<int> retry_after_s_;
  std::optional<Sizes> sizes_;
};

}  // namespace coppice::server
