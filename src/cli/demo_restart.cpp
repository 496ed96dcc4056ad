#include "cli/demo_restart.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "cli/child_server.h"
#include "cli/demo_calls.h"
#include "cli/demo_text.h"
#include "cli/size_text.h"
#include "port/files.h"

namespace coppice::cli {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

/// The demo's text, as often as it takes.
json::array demo_prompt(std::uint16_t port, int tokens) {
  const json::value answer = post_json(port, "/tokenize", {{"content", kDemoSystemPrompt}});
  const json::array& once = answer.at("tokens").as_array();
  json::array prompt;
  while (std::cmp_less(prompt.size(), tokens)) prompt.insert(prompt.end(), once.begin(), once.end());
  prompt.resize(static_cast<std::size_t>(tokens));
  return prompt;
}

struct FirstToken {
  double seconds = 0;
  std::int64_t cached = 0;
};

/// To its first token, which is its last.
FirstToken first_token_of(std::uint16_t port, const json::array& prompt) {
  const auto begun = Clock::now();
  const json::value answer =
      post_json(port, "/v1/completions", {{"prompt", prompt}, {"max_tokens", 1}, {"temperature", 0}});
  return {.seconds = std::chrono::duration<double>(Clock::now() - begun).count(),
          .cached = answer.at("usage").at("prompt_tokens_details").at("cached_tokens").to_number<std::int64_t>()};
}

void wait_for_store(std::uint16_t port, std::int64_t pieces) {
  constexpr std::chrono::seconds kPatience{120};
  const auto end = Clock::now() + kPatience;
  for (;;) {
    const json::value stores = cache_stats(port).at("stores");
    const json::value* const disk =
        stores.as_object().if_contains("disk");  // there is none before the model's content is known
    const json::value store = disk != nullptr ? *disk : json::value{{"on", false}, {"pieces", 0}, {"off_because", ""}};
    if (store.at("on").as_bool() && store.at("pending").to_number<std::int64_t>() == 0 &&
        store.at("pieces").to_number<std::int64_t>() >= pieces)
      return;
    if (Clock::now() > end)
      throw std::runtime_error(fmt::format("the folder holds {} of {} blocks: {}",
                                           store.at("pieces").to_number<std::int64_t>(), pieces,
                                           std::string_view(store.at("off_because").as_string())));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void print_start(std::string_view label, const FirstToken& start, double cold) {
  fmt::print("  {:<34}{:>10.2f} s{:>12}", label, start.seconds, start.cached);
  if (start.cached > 0) fmt::print("   {:.1f}x sooner", cold / start.seconds);
  fmt::print("\n");
}

}  // namespace

void run_demo_restart(const std::vector<std::string>& arguments, const std::filesystem::path& folder, int tokens) {
  std::filesystem::remove_all(folder);
  std::vector<std::string> all = arguments;
  all.insert(all.end(), {"--kv-dir", folder.string(), "--kv-dir-free", "0"});
  const std::filesystem::path log = folder.string() + ".log";
  json::array prompt;
  FirstToken cold, pool, disk;
  std::uint64_t bytes = 0;
  {
    fmt::print(stderr, "  loading the model, and computing {} tokens ...\n", tokens);
    const ChildServer server(all, log);
    wait_for_store(server.port(), 0);
    warm_up(server.port());
    prompt = demo_prompt(server.port(), tokens);
    cold = first_token_of(server.port(), prompt);
    pool = first_token_of(server.port(), prompt);
    fmt::print(stderr, "  waiting until they are stored, and killing the server ...\n");
    wait_for_store(server.port(), tokens / cache_stats(server.port()).at("block_size").to_number<std::int64_t>() - 1);
    bytes = cache_stats(server.port()).at("stores").at("disk").at("bytes").to_number<std::uint64_t>();
  }
  {
    fmt::print(stderr, "  starting another one ...\n");
    const ChildServer server(all, log);
    wait_for_store(server.port(), 1);
    warm_up(server.port());
    disk = first_token_of(server.port(), prompt);
  }
  fmt::print("\n  a prompt of {} tokens; its blocks take {} of {}\n\n", tokens, size_text(bytes),
             port::disk_of(std::filesystem::absolute(folder)));
  fmt::print("  {:<34}{:>12}{:>12}\n", "", "first token", "found");
  print_start("computed", cold, cold.seconds);
  print_start("after kill -9 and a restart", disk, cold.seconds);
  print_start("from the pool", pool, cold.seconds);
  std::filesystem::remove_all(folder);
}

}  // namespace coppice::cli
