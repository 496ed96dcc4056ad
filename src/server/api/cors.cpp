#include "server/api/cors.h"

#include <fmt/format.h>

#include <algorithm>

namespace coppice::server {

namespace {

/// "http://localhost:3000" and the like.
bool is_local(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme)) continue;
    const std::string_view rest = origin.substr(scheme.size());
    for (const std::string_view host : {"localhost", "127.0.0.1", "[::1]"}) {
      if (!rest.starts_with(host)) continue;
      const std::string_view port = rest.substr(host.size());
      const auto is_digit = [](char c) { return '0' <= c && c <= '9'; };
      if (port.empty() || (port.front() == ':' && std::ranges::all_of(port.substr(1), is_digit))) return true;
    }
  }
  return false;
}

}  // namespace

Cors::Cors(std::string_view origins) {
  while (!origins.empty()) {
    std::string_view origin = origins.substr(0, origins.find(','));
    origins.remove_prefix(std::min(origin.size() + 1, origins.size()));
    // As people write them; browsers send neither blanks nor a last slash.
    while (origin.starts_with(' ')) origin.remove_prefix(1);
    while (origin.ends_with(' ') || origin.ends_with('/')) origin.remove_suffix(1);
    all_ |= origin == "*";
    local_ |= origin == "localhost";
    if (!origin.empty()) origins_.emplace_back(origin);
  }
}

bool Cors::allows(std::string_view origin) const {
  if (origin.empty()) return false;
  return all_ || (local_ && is_local(origin)) || std::ranges::find(origins_, origin) != origins_.end();
}

std::string Cors::fields(std::string_view origin) const {
  if (origins_.empty()) return "";
  if (!allows(origin)) return "Vary: Origin\r\n";
  return fmt::format("Access-Control-Allow-Origin: {}\r\nAccess-Control-Expose-Headers: *\r\nVary: Origin\r\n", origin);
}

bool Cors::is_preflight(const HttpRequest& request) const {
  return !origins_.empty() && request.method == "OPTIONS" && !request.origin.empty() && request.asks_for_method;
}

Reply Cors::preflight(const HttpRequest& request) const {
  Reply reply{.content_type = ""};
  if (!allows(request.origin)) return reply;
  reply.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"}, {"Access-Control-Max-Age", "3600"}};
  // By name: "*" does not stand for Authorization.
  if (!request.asked_fields.empty()) reply.headers.emplace_back("Access-Control-Allow-Headers", request.asked_fields);
  return reply;
}

}  // namespace coppice::server
