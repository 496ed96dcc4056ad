// The head of an HTTP request: what it must say, and what of it the rest of the server sees. No sockets here.
#pragma once

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/base/request_error.h"
#include "server/http/http.h"
#include "server/http/http_limits.h"

namespace coppice::server {

/// Of a request whose client names none.
std::string new_request_id();
/// What the client calls the request (X-Request-Id), if that is visible ASCII of 128 characters at most; else a new
/// name.
std::string request_id(const boost::beast::http::request_header<>& head);

/// HttpRequest's method. Of a request that isn't taken, too; empty: its first line was not read.
std::string request_method(const boost::beast::http::request_header<>& head);
/// The path that a request is for. Of a request that isn't taken, too.
std::string request_path(const boost::beast::http::request_header<>& head);

/// All of a request but its body. Throws RequestError (400, 415 or 431): it is not one that we take.
HttpRequest read_head(const boost::beast::http::request_header<>& head, const HttpLimits& limits);

/// RFC 3986, 2.1. What isn't encoded rightly stays as it is.
std::string percent_decoded(std::string_view text);

/// Of the first field of this name in HttpRequest::query, decoded.
std::optional<std::string> query_value(std::string_view query, std::string_view name);

/// Of a request without a body that could say one.
std::string salt_of(const HttpRequest& request);

/// The reply to what the parser could not take (`overdue`: or didn't get in time); none: nobody is there to read it.
std::optional<RequestError> protocol_error(boost::system::error_code error, bool overdue, const HttpLimits& limits);

}  // namespace coppice::server
