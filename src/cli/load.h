// A load on a running OpenAI-compatible server, measured where it counts: at the client. The demo runs it on
// our own server, the benchmarks on others' too.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/http_client.h"

namespace coppice::cli {

/// One request's answer. Times in milliseconds from the moment it was sent.
struct Answer {
  std::string text;
  double first_token_ms = 0;
  double total_ms = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
};

struct LoadResult {
  std::vector<Answer> answers;  ///< in the order of the requests
  double wall_ms = 0;           ///< from the first request sent to the last answer's end

  double ttft_p50_ms() const;
  double ttft_max_ms() const;
  double output_tokens_per_s() const;
};

/// How far a load is; called on the caller's thread a few times a second.
struct LoadProgress {
  int answered = 0;
  int started = 0;  ///< requests that have their first token
  std::int64_t pieces = 0;
};

/// Bodies for /v1/chat/completions: the demo's system prompt with each of its questions, greedy, `max_tokens`
/// each.
std::vector<nlohmann::json> demo_requests(int max_tokens);

/// Lets the weights be read and the compute buffers be made before anything is timed. Shares no block with
/// the load.
void warm_up(const Endpoint& server);

/// Sends all bodies at once, a connection and a thread each, as streams. Throws HttpFailure when any of them
/// failed.
LoadResult run_load(const Endpoint& server, const std::vector<nlohmann::json>& bodies,
                    const std::function<void(const LoadProgress&)>& on_progress);

/// The middle value, or the mean of the middle two. REQUIRES: not empty.
double median(std::vector<double> values);

}  // namespace coppice::cli
