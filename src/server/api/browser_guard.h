// BrowserGuard: what a browser may bring to a server that asks for no keys. There any web page that its user visits
// could send requests (https://fetch.spec.whatwg.org/#cors-safelisted-method), and one whose name is bound anew to this
// machine's address could read replies.
//
// A value; const methods may be called by any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/cors.h"
#include "server/http/http.h"

namespace coppice::server {

/// "localhost", an address of this machine alone, in brackets or not.
bool is_loopback(std::string_view host);

class BrowserGuard {
 public:
  /// `listens_on`: the host that the server listens on. `names`: further names of it, separated by commas; "*": all.
  BrowserGuard(std::string_view listens_on, std::string_view names);

  /// REQUIRES: the server wants no keys. `open`: a public file, or what is as public.
  /// Throws RequestError (403): a name that isn't this server's, or a web page that `cors` doesn't name.
  void check(const HttpRequest& request, bool open, const Cors& cors) const;

 private:
  bool is_ours(std::string_view host) const;

  std::vector<std::string> names_;
  bool all_ = false;     ///< any name
  bool beyond_ = false;  ///< others than this machine can reach it
};

}  // namespace coppice::server
