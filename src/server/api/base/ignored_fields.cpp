#include "server/api/base/ignored_fields.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <set>
#include <utility>

#include "check/mutex.h"

namespace coppice::server {

namespace {

/// What was said, of which clients name some.
class Said {
 public:
  explicit Said(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// Makes `what` fit for the log. False: it was said, or there were too many.
  bool is_new(const std::string& where, std::string& what) {
    constexpr std::size_t kMostLines = 64;
    // Control characters would let a client write lines of its own into the log.
    std::erase_if(what, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (what.size() > most_bytes_) what.resize(most_bytes_);
    const check::Lock lock(mutex_);
    return lines_.size() < kMostLines && lines_.emplace(where, what).second;
  }

 private:
  std::size_t most_bytes_;
  check::Mutex mutex_;
  std::set<std::pair<std::string, std::string>> lines_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace

void log_ignored(const std::string& path, std::string what) {
  static Said said(80);
  if (said.is_new(path, what)) SPDLOG_INFO("{}: '{}' is ignored (said once; docs/api.md lists all)", path, what);
}

void log_not_held(const std::string& where, std::string what) {
  static Said said(300);
  if (said.is_new(where, what)) SPDLOG_INFO("{}: {} is not held (said once)", where, what);
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
