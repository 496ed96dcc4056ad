#include "server/api/route_table.h"

#include "server/http/http_head.h"

namespace coppice::server {

namespace {

/// Takes the first segment, the slash before it included.
std::string_view take_segment(std::string_view& path) {
  const std::string_view segment = path.substr(0, path.find('/', 1));
  path.remove_prefix(segment.size());
  return segment;
}

std::string_view without_last_slash(std::string_view path) {
  return path.substr(0, path.size() - (path.ends_with('/') ? 1 : 0));
}

bool matches(std::string_view pattern, std::string_view path) {
  if (pattern == "/") return path.empty();
  if (pattern.ends_with('/')) return path.starts_with(pattern);
  while (!pattern.empty() && !path.empty()) {
    const std::string_view wanted = take_segment(pattern), segment = take_segment(path);
    if (wanted == "/{id}" ? segment.size() < 2 : wanted != segment) return false;
  }
  return pattern.empty() && path.empty();
}

}  // namespace

const Route* RouteTable::find(std::string_view path, std::string_view method) const {
  path = without_last_slash(path);
  const Route* other = nullptr;
  for (const Route& route : routes_) {
    if (!matches(route.path, path)) continue;
    if (route.method == method) return &route;
    if (other == nullptr) other = &route;
  }
  return other;
}

std::string RouteTable::methods(std::string_view path) const {
  path = without_last_slash(path);
  std::string methods;
  for (const Route& route : routes_)
    if (matches(route.path, path)) methods += (methods.empty() ? "" : ", ") + route.method;
  return methods;
}

std::string path_segment(std::string_view path, int n) {
  std::string_view segment;
  for (int i = 0; i <= n; ++i) segment = take_segment(path);
  return segment.empty() ? "" : percent_decoded(segment.substr(1));
}

}  // namespace coppice::server
