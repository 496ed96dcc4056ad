// RouteTable: what is at which path.
//
// Built before the first request; from then on any number of threads may search it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "server/api/base/dialect.h"
#include "server/base/reply.h"
#include "server/http/http.h"

namespace coppice::server {

class Api;

struct Route {
  using Action = boost::asio::awaitable<void> (Api::*)(HttpRequest&, ReplyWriter&);
  /// "/v1/responses/{id}": an {id} stands for one segment. One that ends with a slash has all that is below it.
  std::string path;
  std::string method;
  Action action = nullptr;             ///< one of the two
  std::unique_ptr<Dialect> dialect{};  ///< generations
  bool open = false;                   ///< to those without a key, too
};

class RouteTable {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }

  /// The one of this method, else any at this path; null: there is none. A slash at the path's end doesn't count.
  const Route* find(std::string_view path, std::string_view method = "") const;
  /// Of this path: "GET, DELETE".
  std::string methods(std::string_view path) const;

 private:
  std::deque<Route> routes_;  // they stay where they are
};

/// The nth segment of a path, from 0, percent-decoded; empty: it has none.
std::string path_segment(std::string_view path, int n);

}  // namespace coppice::server
