#include "cli/demo_restart.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "cli/child_server.h"
#include "cli/demo_calls.h"
#include "cli/demo_text.h"
#include "cli/size_text.h"
#include "port/files.h"

namespace coppice::cli {
namespace {

namespace fs = std::filesystem;
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

/// What the server says of its cache's folder.
struct Store {
  bool is_known = false;  ///< false: the model's content isn't known yet
  bool on = false;
  bool no_room = false;
  std::int64_t pieces = 0, pending = 0;
  std::uint64_t bytes = 0;
  std::string off_because;

  bool operator==(const Store&) const = default;
};

Store store_of(std::uint16_t port) {
  const json::value stores = cache_stats(port).at("stores");
  const json::value* const disk = stores.as_object().if_contains("disk");
  if (disk == nullptr) return {};
  return {.is_known = true,
          .on = disk->at("on").as_bool(),
          .no_room = disk->at("no_room").as_bool(),
          .pieces = disk->at("pieces").to_number<std::int64_t>(),
          .pending = disk->at("pending").to_number<std::int64_t>(),
          .bytes = disk->at("bytes").to_number<std::uint64_t>(),
          .off_because = std::string(disk->at("off_because").as_string())};
}

/// Why it holds fewer pieces than it was given.
std::string why_few(const Store& store, std::int64_t pieces, const fs::path& folder) {
  if (!store.is_known) return "the model's content isn't known yet";
  if (!store.off_because.empty()) return store.off_because;
  std::error_code error;
  const fs::space_info disk = fs::space(folder, error);
  const std::uint64_t piece = store.pieces > 0 ? store.bytes / static_cast<std::uint64_t>(store.pieces) : 0;
  const std::uint64_t wanted = piece * static_cast<std::uint64_t>(pieces + 2);  // and the other requests'
  if (!error && (store.no_room || store.bytes + disk.available < wanted)) return "its disk has no room for them all";
  return fmt::format("{}.log may say why", folder.string());
}

/// Until it holds as many, and writes no more. Throws std::runtime_error when it won't.
void wait_for_store(std::uint16_t port, const fs::path& folder, std::int64_t pieces) {
  constexpr std::chrono::seconds kPatience{120}, kPause{10};
  const auto begun = Clock::now();
  auto changed = begun;
  for (Store store, last;; last = store) {
    store = store_of(port);
    if (store.on && store.pending == 0 && store.pieces >= pieces) return;
    const auto now = Clock::now();
    if (store != last) changed = now;
    const bool rests = store.is_known && store.pending == 0 && now - changed > kPause;
    if (rests || now - begun > kPatience)
      throw std::runtime_error(fmt::format("{} holds {} of {} blocks: {}", folder.string(), store.pieces, pieces,
                                           why_few(store, pieces, folder)));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void print_start(std::string_view label, const FirstToken& start, double cold) {
  fmt::print("  {:<34}{:>10.2f} s{:>12}", label, start.seconds, start.cached);
  if (start.cached > 0) fmt::print("   {:.1f}x sooner", cold / start.seconds);
  fmt::print("\n");
}

/// The folder goes, also after a failure: it may be large.
struct Removal {
  const fs::path& folder;
  ~Removal() {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
};

}  // namespace

void run_demo_restart(const std::vector<std::string>& arguments, const std::filesystem::path& folder, int tokens) {
  fs::remove_all(folder);
  const Removal removal{folder};
  std::vector<std::string> all = arguments;
  all.insert(all.end(), {"--kv-dir", folder.string(), "--kv-dir-free", "0"});
  const std::filesystem::path log = folder.string() + ".log";
  json::array prompt;
  FirstToken cold, pool, disk;
  std::uint64_t bytes = 0;
  {
    fmt::print(stderr, "  loading the model, and computing {} tokens ...\n", tokens);
    const ChildServer server(all, log);
    wait_for_store(server.port(), folder, 0);
    warm_up(server.port());
    prompt = demo_prompt(server.port(), tokens);
    cold = first_token_of(server.port(), prompt);
    pool = first_token_of(server.port(), prompt);
    fmt::print(stderr, "  waiting until they are stored, and killing the server ...\n");
    wait_for_store(server.port(), folder,
                   tokens / cache_stats(server.port()).at("block_size").to_number<std::int64_t>() - 1);
    bytes = store_of(server.port()).bytes;
  }
  {
    fmt::print(stderr, "  starting another one ...\n");
    const ChildServer server(all, log);
    wait_for_store(server.port(), folder, 1);
    warm_up(server.port());
    disk = first_token_of(server.port(), prompt);
  }
  fmt::print("\n  a prompt of {} tokens; its blocks take {} of {}\n\n", tokens, size_text(bytes),
             port::disk_of(std::filesystem::absolute(folder)));
  fmt::print("  {:<34}{:>12}{:>12}\n", "", "first token", "found");
  print_start("computed", cold, cold.seconds);
  print_start("after kill -9 and a restart", disk, cold.seconds);
  print_start("from the pool", pool, cold.seconds);
}

}  // namespace coppice::cli
