// HTTP as those who answer requests see it. No sockets here.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/base/reply.h"
#include "server/base/request_error.h"
#include "server/http/body_budget.h"

namespace coppice::server {

struct HttpRequest {
  std::string id;             ///< its client's, or one of ours; visible ASCII. The reply's head has it
  std::string method;         ///< "GET"; HEAD comes as GET, its body is dropped on the way out
  std::string path;           ///< without the query
  std::string query;          ///< what is behind the '?', as it was sent
  std::string authorization;  ///< the field's value, or an X-Api-Key as such; empty: none, or more than one
  std::string host;    ///< the name or address that the client used, with a port if it has one; empty: it says none
  std::string origin;  ///< of the web page whose request it is, as its browser says; empty: none
  std::string asked_fields;  ///< Access-Control-Request-Headers; empty: none
  /// Its browser says that a page of another origin sent it; such a one may have no `origin`.
  bool from_other_page = false;
  bool asks_for_method = false;     ///< there is an Access-Control-Request-Method
  std::optional<std::string> salt;  ///< what the field says that HttpLimits::salt_field names; none: it isn't there
  std::string reply_fields;         ///< set by HttpHandler::admit(), also if it throws: lines for the head of the reply
  std::string client;               ///< set by HttpHandler::admit(), for the log: whose key it is
  std::string tenant;  ///< set by HttpHandler::admit(): the same for all requests of one key; empty: no keys
  std::string body;
  BodyBudget::Charge body_charge;

  /// For a handler that has read the body and goes on for long.
  void drop_body() {
    std::string().swap(body);
    body_charge = {};
  }
};

/// What answers requests.
class HttpHandler {
 public:
  /// A request's head is there, its body is not. Throws RequestError: the request is refused, its body not taken.
  virtual void admit(HttpRequest& request) = 0;
  /// Answers an admitted request.
  virtual boost::asio::awaitable<void> handle(HttpRequest& request, ReplyWriter& out) = 0;
  /// The reply to a request or a connection that is refused before it comes to handle(); the error knows its id.
  /// `method`, `path`: as HttpRequest's; empty: the head was not read.
  virtual Reply refuse(const RequestError& error, std::string_view method, std::string_view path) = 0;

 protected:
  ~HttpHandler() = default;
};

struct HttpFigures {
  std::size_t connections = 0;  ///< open ones
  std::size_t body_bytes = 0;   ///< of bodies that are arriving or wait to be prepared
};

}  // namespace coppice::server
