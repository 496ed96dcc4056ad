// RequestLog: one line of JSON for each request, for machines. It has no keys and nothing of what was asked or
// answered.
//
// Belongs to the io thread, which never waits for a line's reader: a line that a pipe doesn't take at once is lost.
//
// Invariant: whatever becomes of a request that was read, it has one line; but for successes of what is only looked at
// (Route::open and /metrics).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "check/thread_role.h"

namespace coppice::server {

struct RequestRecord {
  std::string id, method, route;
  std::string model;  ///< empty: none was asked for, or it was not read
  std::string key;    ///< the key's name, never the key; empty: it has none
  int status = 0;
  /// stop, tool_calls, length, timeout; an error's code; client_gone; empty: an answer that isn't generated.
  std::string end;
  std::optional<std::int64_t> prompt_tokens, cached_tokens, completion_tokens;
  std::optional<double> image_seconds;                       ///< until its images were encoded; none: it has none
  std::optional<double> queue_seconds, first_token_seconds;  ///< the latter since the request was read
  double total_seconds = 0;
};

class RequestLog {
 public:
  /// `path`: of a file that lines are added to; "-": standard output; empty: nothing is written. Throws
  /// std::runtime_error.
  explicit RequestLog(const std::string& path);
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  bool on() const { return fd_ >= 0; }
  void write(const RequestRecord& record);

 private:
  check::ThreadRole io_thread_;
  std::string path_;
  int fd_ = -1;
  bool owned_ = false;
  bool complained_ = false;
};

/// {"time", "id", "method", "route", "status", "model", "key", ...}, without a line end. `now`: for "time".
std::string record_json(const RequestRecord& record, std::chrono::system_clock::time_point now);

}  // namespace coppice::server
