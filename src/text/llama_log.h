// Sends libllama's log to ours, at debug level: it would fill a server's log with load reports.
#pragma once

#include <string>
#include <string_view>

namespace coppice::text {

/// Routes the process-wide log of libllama, ggml and llama-common. Any thread, any number of times.
void route_llama_log();

/// For libraries of llama.cpp with a hook of their own: a piece of a line. level: a ggml_log_level.
void pass_llama_log(int level, const char* text);

/// Keeps the errors that libllama logs on this thread while it lives: the C API returns null without a reason.
/// REQUIRES: one at a time on a thread.
class LlamaErrorCapture {
 public:
  LlamaErrorCapture();
  ~LlamaErrorCapture();
  LlamaErrorCapture(const LlamaErrorCapture&) = delete;
  LlamaErrorCapture& operator=(const LlamaErrorCapture&) = delete;

  /// For the log's hook: an error line of this thread.
  static void keep(std::string_view line);

  /// The first error line, or `otherwise`.
  std::string reason(const std::string& otherwise) const { return first_.empty() ? otherwise : first_; }

 private:
  std::string first_;
};

}  // namespace coppice::text
