// The demo's requests, all at once against a server on this machine, measured at the client.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coppice::cli {

/// Times in seconds from the moment the requests were sent. Tokens and bytes are the server's own counts.
struct BurstResult {
  std::vector<std::string> answers;  ///< in the order of the questions
  std::vector<double> first_token;   ///< ascending
  double total = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t computed_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t generated_tokens = 0;
  std::int64_t kv_bytes_peak = 0;
};

/// Bodies for /v1/chat/completions: the shared system prompt with each of the questions.
std::vector<std::string> demo_requests();

/// Warms the server up, then sends the requests, a connection and a thread each. Throws std::runtime_error when one
/// of them fails.
BurstResult run_demo_burst(std::uint16_t port);

}  // namespace coppice::cli
