#include "cli/demo_burst.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <exception>
#include <latch>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "cli/demo_calls.h"
#include "cli/demo_text.h"
#include "cli/http_client.h"

namespace coppice::cli {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

constexpr int kAnswerTokens = 48;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Answer {
  std::string text;
  double first_token = 0;
};

/// The text of the events in a stream's whole lines from `at` on, which moves behind them.
std::string text_of(std::string_view stream, std::size_t& at) {
  std::string text;
  for (std::size_t end = 0; (end = stream.find('\n', at)) != std::string_view::npos; at = end + 1) {
    const std::string_view line = stream.substr(at, end - at);
    if (!line.starts_with("data: {")) continue;
    const json::value event = json::parse(line.substr(6));
    json::error_code none;
    const json::value* content = event.find_pointer("/choices/0/delta/content", none);
    if (content != nullptr && content->is_string()) text += std::string_view(content->get_string());
  }
  return text;
}

Answer ask(std::uint16_t port, const std::string& body, Clock::time_point start) {
  Answer answer;
  std::size_t at = 0;
  const HttpReply reply = http_post(port, "/v1/chat/completions", body, [&](std::string_view stream) {
    answer.text += text_of(stream, at);
    if (answer.first_token == 0 && !answer.text.empty()) answer.first_token = seconds_since(start);
  });
  if (reply.status != 200 || !reply.body.ends_with("data: [DONE]\n\n")) {
    throw std::runtime_error(fmt::format("the server answered {}: {}", reply.status, reply.body.substr(0, 300)));
  }
  return answer;
}

}  // namespace

std::vector<std::string> demo_requests() {
  std::vector<std::string> bodies;
  for (const std::string_view question : kDemoQuestions) {
    const json::object body = {
        {"messages", {{{"role", "system"}, {"content", kDemoSystemPrompt}}, {{"role", "user"}, {"content", question}}}},
        {"temperature", 0},
        {"max_tokens", kAnswerTokens},
        {"stream", true},
    };
    bodies.push_back(json::serialize(body));
  }
  return bodies;
}

BurstResult run_demo_burst(std::uint16_t port) {
  warm_up(port);
  const json::value before = cache_stats(port);
  const std::vector<std::string> bodies = demo_requests();
  std::vector<Answer> answers(bodies.size());
  std::vector<std::exception_ptr> failures(bodies.size());
  std::latch ready(static_cast<std::ptrdiff_t>(bodies.size()) + 1);
  Clock::time_point start;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      ready.arrive_and_wait();
      try {
        answers[i] = ask(port, bodies[i], start);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    });
  }
  start = Clock::now();
  ready.arrive_and_wait();
  threads.clear();  // joins
  BurstResult result;
  result.total = seconds_since(start);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  const json::value after = cache_stats(port);
  const auto grown = [&](const char* name) {
    return after.at("tokens").at(name).to_number<std::int64_t>() -
           before.at("tokens").at(name).to_number<std::int64_t>();
  };
  result.prompt_tokens = grown("prompt");
  result.computed_tokens = grown("computed");
  result.cached_tokens = grown("cached");
  result.generated_tokens = grown("generated");
  result.kv_bytes_peak = after.at("bytes").at("peak").to_number<std::int64_t>();
  for (Answer& answer : answers) {
    result.answers.push_back(std::move(answer.text));
    result.first_token.push_back(answer.first_token);
  }
  std::ranges::sort(result.first_token);
  return result;
}

}  // namespace coppice::cli
