// Which proxy a URL is asked through, as the environment says.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "server/fetch/url.h"

namespace coppice::pull {

struct Proxy {
  server::Url at;
  std::string authorization;  ///< of the field Proxy-Authorization; empty: none
};

/// A variable's value; empty: it isn't set.
using Variables = std::function<std::string(const char* name)>;

/// https_proxy, http_proxy and all_proxy, and no_proxy, in which names stand for what is below them, too; "*": none.
/// Capitals will do, but for http_proxy, which a web server may have from a client. Throws std::runtime_error: one that
/// can't be understood.
std::optional<Proxy> proxy_for(const server::Url& url, const Variables& variables);

}  // namespace coppice::pull
