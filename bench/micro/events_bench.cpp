// What KV events cost at 1,000 blocks a second: a cache whose every block evicts one, told to a subscriber over ZeroMQ,
// and the same cache alone, in turn.
//
//   events_bench [--pairs 12] [--seconds 3] [--blocks 1000]
//
// Each pair says how much processor time a second of both takes: of the engine's thread, in which it makes steps
// longer, and of the sender's threads. Goal: the first is at most 1 % of a second.
#include <fmt/format.h>
#include <zmq.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "events/change_feed.h"
#include "events/publisher.h"
#include "kv/cache.h"

namespace {

using coppice::kv::BlockOp;
using coppice::kv::Cache;
using coppice::kv::CacheConfig;
using coppice::kv::Token;
using Clock = std::chrono::steady_clock;

constexpr int kBlock = 32;
constexpr int kBlocksInStep = 16;  // a chunk of a prompt
constexpr int kPoolBlocks = 4096;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Reads what is published, and nothing else.
class Subscriber {
 public:
  explicit Subscriber(const std::string& endpoint) {
    socket_ = zmq_socket(context_, ZMQ_SUB);
    const int patience = 50;
    zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "", 0);
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &patience, sizeof patience);
    if (zmq_connect(socket_, endpoint.c_str()) != 0) throw std::runtime_error("the subscriber can't connect");
    thread_ = std::jthread([this](const std::stop_token& stop) { read(stop); });
  }
  ~Subscriber() {
    thread_.request_stop();
    thread_.join();
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;

  std::int64_t messages() const { return messages_; }
  double processor_seconds() const { return processor_seconds_; }  ///< of its own thread

 private:
  void read(const std::stop_token& stop) {
    std::vector<char> frame(std::size_t{1} << 22);
    while (!stop.stop_requested()) {
      if (zmq_recv(socket_, frame.data(), frame.size(), 0) >= 0) ++messages_;
      processor_seconds_ = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    }
  }

  void* context_ = zmq_ctx_new();
  void* socket_ = nullptr;
  std::atomic<std::int64_t> messages_ = 0;
  std::atomic<double> processor_seconds_ = 0;
  std::jthread thread_;
};

/// A full pool; each step's blocks take the place of others.
class Load {
 public:
  Load() : cache_(config()) {
    while (cache_.stats().evictions == 0) {
      draw();
      insert();
    }
  }
  Cache& cache() { return cache_; }

  /// Processor seconds of this thread in which so many seconds' worth of blocks came and went.
  double run(double seconds, int blocks_a_second) {
    const int steps = static_cast<int>(seconds * blocks_a_second / kBlocksInStep);
    const auto each = std::chrono::duration<double>(static_cast<double>(kBlocksInStep) / blocks_a_second);
    auto next = Clock::now();
    double taken = 0;
    for (int i = 0; i < steps; ++i) {
      draw();
      const double before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      insert();
      cache_.tell_all();
      taken += seconds_of(CLOCK_THREAD_CPUTIME_ID) - before;
      next += std::chrono::duration_cast<Clock::duration>(each);
      std::this_thread::sleep_until(next);
    }
    return taken;
  }

 private:
  static CacheConfig config() {
    CacheConfig config;
    config.block_size = kBlock;
    config.num_blocks = kPoolBlocks;
    config.groups.resize(1);
    config.max_extend = kBlock * kBlocksInStep;
    return config;
  }
  void draw() {
    tokens_.clear();
    for (int t = 0; t < kBlock * kBlocksInStep; ++t) tokens_.push_back(static_cast<Token>(dice_() % 49152));
  }
  void insert() {
    const std::span<const Token> prompt(tokens_);
    const auto seq = cache_.admit({prompt, {}, 1});
    if (!seq || !cache_.extend(*seq, static_cast<std::int32_t>(prompt.size()), copies_))
      throw std::runtime_error("out of blocks");
    cache_.publish(*seq, prompt);
    copies_.clear();
    cache_.finish(*seq);
  }

  std::mt19937_64 dice_{1};
  std::vector<Token> tokens_;
  std::vector<BlockOp> copies_;
  Cache cache_;
};

struct Told {
  Told() : publisher({.endpoint = "tcp://127.0.0.1:*", .replay = {}, .topic = {}}, feed) {
    load.cache().observe(&feed);
    publisher.start({.block_size = kBlock, .names = coppice::events::EventNames({})});
    subscriber = std::make_unique<Subscriber>(publisher.endpoint());
  }
  coppice::events::ChangeFeed feed;
  Load load;
  coppice::events::Publisher publisher;
  std::unique_ptr<Subscriber> subscriber;
};

std::string quartiles(std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", at(0.5), at(0.25), at(0.75));
}

int run(int pairs, double seconds, int blocks) {
  Load alone;
  Told told;
  told.load.run(1, blocks);  // the newcomer is told all
  std::vector<double> engine, sender, plain;
  for (int i = 0; i < pairs; ++i) {
    double without = 0, with = 0;
    const auto run_alone = [&] { without = alone.run(seconds, blocks) / seconds; };
    if (i % 2 == 0) run_alone();
    const double threads = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - seconds_of(CLOCK_THREAD_CPUTIME_ID);
    const double reads = told.subscriber->processor_seconds();
    with = told.load.run(seconds, blocks) / seconds;
    const double sends = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - seconds_of(CLOCK_THREAD_CPUTIME_ID) - threads -
                         (told.subscriber->processor_seconds() - reads);
    if (i % 2 != 0) run_alone();
    plain.push_back(100 * without);
    engine.push_back(100 * (with - without));
    sender.push_back(100 * sends / seconds);
  }
  fmt::print(
      "{} pairs of {} s, {} blocks of {} tokens a second come and as many go; {} messages; % of a processor, median "
      "(quartiles)\n",
      pairs, seconds, blocks, kBlock, told.subscriber->messages());
  fmt::print("the cache's own work, alone      {}\n", quartiles(plain));
  fmt::print("more of the engine's thread      {}\n", quartiles(engine));
  fmt::print("encoding and sending (ZeroMQ's and the subscriber's input/output threads, too)  {}\n", quartiles(sender));
  std::ranges::sort(engine);
  return engine[engine.size() / 2] <= 1 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What KV events cost");
  int pairs = 12, blocks = 1000;
  double seconds = 3;
  app.add_option("--pairs", pairs)->check(CLI::PositiveNumber);
  app.add_option("--seconds", seconds, "of each side of a pair")->check(CLI::PositiveNumber);
  app.add_option("--blocks", blocks, "a second")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(pairs, seconds, blocks);
  } catch (const std::exception& e) {
    fmt::print(stderr, "events_bench: {}\n", e.what());
    return 2;
  }
}
