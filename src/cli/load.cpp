#include "cli/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <latch>
#include <thread>

#include "cli/demo_text.h"

namespace coppice::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Counters that the requests' threads raise and the caller's thread reads.
struct Counters {
  std::atomic<int> answered = 0;
  std::atomic<int> started = 0;
  std::atomic<std::int64_t> pieces = 0;

  LoadProgress read() const { return {answered.load(), started.load(), pieces.load()}; }
};

Answer ask(const Endpoint& server, const nlohmann::json& body, Counters& counters) {
  Answer answer;
  const auto start = Clock::now();
  http_post_stream(server, "/v1/chat/completions", body, [&](const nlohmann::json& event) {
    if (event.contains("usage") && event["usage"].is_object()) {
      const nlohmann::json& usage = event["usage"];
      answer.prompt_tokens = usage.value("prompt_tokens", std::int64_t{0});
      answer.completion_tokens = usage.value("completion_tokens", std::int64_t{0});
      const auto details = usage.find("prompt_tokens_details");
      if (details != usage.end() && details->is_object()) {
        answer.cached_tokens = details->value("cached_tokens", std::int64_t{0});
      }
    }
    if (!event.contains("choices") || event["choices"].empty()) return;
    const auto delta = event["choices"][0].value("delta", nlohmann::json::object());
    const auto content = delta.find("content");
    if (content == delta.end() || !content->is_string() || content->get_ref<const std::string&>().empty()) return;
    if (answer.text.empty()) {
      answer.first_token_ms = ms_since(start);
      ++counters.started;
    }
    answer.text += content->get_ref<const std::string&>();
    ++counters.pieces;
  });
  answer.total_ms = ms_since(start);
  ++counters.answered;
  return answer;
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double LoadResult::ttft_p50_ms() const {
  std::vector<double> times;
  for (const Answer& answer : answers) times.push_back(answer.first_token_ms);
  return median(std::move(times));
}

double LoadResult::ttft_max_ms() const {
  double most = 0;
  for (const Answer& answer : answers) most = std::max(most, answer.first_token_ms);
  return most;
}

double LoadResult::output_tokens_per_s() const {
  std::int64_t tokens = 0;
  for (const Answer& answer : answers) tokens += answer.completion_tokens;
  return wall_ms > 0 ? 1000.0 * static_cast<double>(tokens) / wall_ms : 0;
}

std::vector<nlohmann::json> demo_requests(int max_tokens) {
  std::vector<nlohmann::json> bodies;
  for (const std::string_view question : kDemoQuestions) {
    bodies.push_back({
        {"model", "default"},
        {"messages", {{{"role", "system"}, {"content", kDemoSystemPrompt}}, {{"role", "user"}, {"content", question}}}},
        {"temperature", 0},
        {"max_tokens", max_tokens},
        {"stream", true},
        {"stream_options", {{"include_usage", true}}},
    });
  }
  return bodies;
}

/// Lets the weights be read and the compute buffers be made before anything is timed. Shares no block with
/// the load.
void warm_up(const Endpoint& server) {
  const nlohmann::json body = {
      {"model", "default"}, {"prompt", "Once upon a time, a lighthouse keeper"},
      {"max_tokens", 4},    {"temperature", 0},
      {"stream", true},     {"ignore_eos", true},
  };
  http_post_stream(server, "/v1/completions", body, [](const nlohmann::json&) {});
}

LoadResult run_load(const Endpoint& server, const std::vector<nlohmann::json>& bodies,
                    const std::function<void(const LoadProgress&)>& on_progress) {
  LoadResult result;
  result.answers.resize(bodies.size());
  std::vector<std::exception_ptr> failures(bodies.size());
  Counters counters;
  std::vector<Clock::time_point> ends(bodies.size());
  std::atomic<std::size_t> ended = 0;
  std::latch ready(static_cast<std::ptrdiff_t>(bodies.size()) + 1);

  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      ready.arrive_and_wait();
      try {
        result.answers[i] = ask(server, bodies[i], counters);
      } catch (...) {
        failures[i] = std::current_exception();
      }
      ends[i] = Clock::now();
      ++ended;
    });
  }
  const auto start = Clock::now();
  ready.arrive_and_wait();
  while (ended < bodies.size()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    on_progress(counters.read());
  }
  threads.clear();
  const auto end = *std::max_element(ends.begin(), ends.end());
  result.wall_ms = std::chrono::duration<double, std::milli>(end - start).count();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return result;
}

}  // namespace coppice::cli
