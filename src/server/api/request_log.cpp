#include "server/api/request_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <utility>

#include "check/assert.h"
#include "server/api/base/json.h"

namespace coppice::server {

namespace {

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

template <class T>
Json value_or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::optional<double> rounded(std::optional<double> seconds) {
  if (seconds) *seconds = std::round(*seconds * 1e6) / 1e6;
  return seconds;
}

std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto since_1970 = time.time_since_epoch();
  const std::time_t seconds = std::chrono::floor<std::chrono::seconds>(since_1970).count();
  const auto ms = std::chrono::floor<std::chrono::milliseconds>(since_1970).count() - seconds * 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  const std::size_t n = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", std::string_view(text.data(), n), ms);
}

}  // namespace

std::string record_json(const RequestRecord& record, std::chrono::system_clock::time_point now) {
  return dump(JsonObject{{"time", utc_text(now)},
                         {"id", record.id},
                         {"method", text_or_null(record.method)},
                         {"route", record.route},
                         {"status", record.status},
                         {"model", text_or_null(record.model)},
                         {"key", text_or_null(record.key)},
                         {"prompt_tokens", value_or_null(record.prompt_tokens)},
                         {"cached_tokens", value_or_null(record.cached_tokens)},
                         {"completion_tokens", value_or_null(record.completion_tokens)},
                         {"image_seconds", value_or_null(rounded(record.image_seconds))},
                         {"queue_seconds", value_or_null(rounded(record.queue_seconds))},
                         {"first_token_seconds", value_or_null(rounded(record.first_token_seconds))},
                         {"total_seconds", *rounded(record.total_seconds)},
                         {"end", text_or_null(record.end)}});
}

RequestLog::RequestLog(const std::string& path) : path_(path) {
  if (path.empty()) return;
  if (path == "-") {
    fd_ = STDOUT_FILENO;
    return;
  }
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
  if (fd_ < 0)
    throw std::runtime_error(fmt::format("Cannot write the request log '{}': {}.", path, std::strerror(errno)));
  owned_ = true;
}

RequestLog::~RequestLog() {
  if (owned_) ::close(fd_);
}

void RequestLog::write(const RequestRecord& record) {
  COPPICE_ASSERT(io_thread_.mine());
  if (!on()) return;
  const std::string line = record_json(record, std::chrono::system_clock::now()) + '\n';
  pollfd out{.fd = fd_, .events = POLLOUT, .revents = 0};
  const bool ready = ::poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0;
  if (ready && std::cmp_equal(::write(fd_, line.data(), line.size()), line.size())) {
    complained_ = false;
  } else if (!std::exchange(complained_, true)) {
    SPDLOG_WARN("lines of the request log '{}' are lost: {}", path_,
                ready ? "it can't be written" : "its reader is slow");
  }
}

}  // namespace coppice::server
