// Cors: which web pages may read this server's replies in a browser
// (https://fetch.spec.whatwg.org/#http-cors-protocol).
//
// Not needed by programs that are no browsers. A value; const methods may be called by any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/base/reply.h"
#include "server/http/http.h"

namespace coppice::server {

class Cors {
 public:
  /// Origins ("https://app.example.com") separated by commas; "*": all; "localhost": this machine's, at any port.
  /// Empty: none.
  explicit Cors(std::string_view origins = "");

  bool allows(std::string_view origin) const;
  bool allows_all() const { return all_; }

  /// Lines of a reply's head; empty: the page may not read it.
  std::string fields(std::string_view origin) const;

  /// Does a browser ask here whether it may send a request? Such a request never has a key.
  bool is_preflight(const HttpRequest& request) const;
  Reply preflight(const HttpRequest& request) const;

 private:
  std::vector<std::string> origins_;
  bool all_ = false, local_ = false;
};

}  // namespace coppice::server
