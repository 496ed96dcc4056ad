#include "server/api/base/ignored_fields.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <set>
#include <utility>

namespace coppice::server {

void log_ignored(const std::string& path, std::string what) {
  constexpr std::size_t kMostBytes = 80, kMostLines = 64;
  static std::mutex mutex;
  static std::set<std::pair<std::string, std::string>> said;
  // Control characters would let a client write lines of its own into the log.
  std::erase_if(what, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (what.size() > kMostBytes) what.resize(kMostBytes);
  {
    const std::lock_guard lock(mutex);
    if (said.size() >= kMostLines || !said.emplace(path, what).second) return;
  }
  SPDLOG_INFO("{}: '{}' is ignored (said once; docs/api.md lists all)", path, what);
}

void log_ignored_fields(const std::string& path, const JsonFields& request, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string whole = name;
    const std::size_t dot = whole.find('.');
    const Json* value = request.find(whole.substr(0, dot).c_str());
    if (value != nullptr && dot != std::string::npos)
      value = value->is_object() ? JsonFields(value->get_object()).find(whole.substr(dot + 1).c_str()) : nullptr;
    if (value != nullptr) log_ignored(path, whole);
  }
}

}  // namespace coppice::server
