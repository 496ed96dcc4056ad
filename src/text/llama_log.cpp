#include "text/llama_log.h"

#include <llama.h>
#include <log.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string_view>

namespace coppice::text {

namespace {

thread_local LlamaErrorCapture* capture = nullptr;

/// Lines arrive in fragments (GGML_LOG_LEVEL_CONT): whole ones are passed on.
void on_log(ggml_log_level level, const char* text, void*) {
  thread_local std::string line;
  thread_local ggml_log_level line_level = GGML_LOG_LEVEL_INFO;
  if (level != GGML_LOG_LEVEL_CONT) line_level = level;
  line += text;
  if (line.empty() || line.back() != '\n') return;
  while (!line.empty() && line.back() == '\n') line.pop_back();
  spdlog::debug("llama: {}", line);
  if (line_level == GGML_LOG_LEVEL_ERROR) LlamaErrorCapture::keep(line);
  line.clear();
}

}  // namespace

void pass_llama_log(int level, const char* text) {
  on_log(static_cast<ggml_log_level>(level), text, nullptr);
}

void LlamaErrorCapture::keep(std::string_view line) {
  if (capture != nullptr && capture->first_.empty()) capture->first_ = line;
}

void route_llama_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(on_log, nullptr);
    common_log_set_verbosity_thold(-1);  // it prints by a thread of its own, and has no hook
  });
}

LlamaErrorCapture::LlamaErrorCapture() {
  capture = this;
}
LlamaErrorCapture::~LlamaErrorCapture() {
  capture = nullptr;
}

}  // namespace coppice::text
