// The real publisher, and subscribers over ZeroMQ.
#include "events/publisher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Debian's ZeroMQ is compiled without ThreadSanitizer, which so misses what its threads synchronise by.
extern "C" const char* __tsan_default_suppressions();   // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "called_from_lib:libzmq.so.5\nrace:libzmq.so.5\n";
}

namespace coppice::events {
namespace {

using nlohmann::json;
using Frames = std::vector<std::string>;

const kv::Namespace kNobody;
constexpr int kPatienceMs = 20'000;

/// A peer of the publisher.
class Peer {
 public:
  Peer(int type, const std::string& endpoint, const std::string& topic = "")
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, type)) {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &kPatienceMs, sizeof kPatienceMs);
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, topic.data(), topic.size());
    zmq_connect(socket_, endpoint.c_str());
  }
  ~Peer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  Frames receive() {
    Frames frames;
    for (bool more = true; more;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, 0) < 0) throw std::runtime_error("nothing came");
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message) != 0;
      zmq_msg_close(&message);
    }
    return frames;
  }
  void send(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i)
      zmq_send(socket_, frames[i].data(), frames[i].size(), i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
  }
  /// It waits until the other side has ended the connection. False: that goes on.
  bool sends_in_vain(const Frames& frames) {
    zmq_socket_monitor(socket_, "inproc://ended", ZMQ_EVENT_DISCONNECTED);
    void* const monitor = zmq_socket(context_, ZMQ_PAIR);
    zmq_connect(monitor, "inproc://ended");
    send(frames);
    zmq_pollitem_t item = {monitor, 0, ZMQ_POLLIN, 0};
    const bool ended = zmq_poll(&item, 1, kPatienceMs) == 1;
    zmq_close(monitor);
    return ended;
  }

 private:
  void* context_;
  void* socket_;
};

std::uint64_t number_of(const std::string& bytes) {
  std::uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<std::uint8_t>(byte);
  return number;
}

std::string bytes_of(std::uint64_t number) {
  std::string bytes;
  for (int i = 7; i >= 0; --i) bytes += static_cast<char>(number >> (8 * i));
  return bytes;
}

class PublisherTest : public testing::Test {
 protected:
  static std::string place(const char* what) { return fmt::format("ipc:///tmp/coppice-{}-{}", what, getpid()); }

  PublisherTest() {
    feed.on_want([this] { wanted = true; });
    publisher.start({.block_size = 4, .names = EventNames(EventNames::Secret{})});
  }
  void enter(std::uint8_t n) {
    kv::Digest digest{};
    digest[0] = n;
    const std::vector<kv::Token> tokens = {n, 2, 3, 4};
    feed.entered({.digest = digest, .parent = {}, .is_first = true, .text = tokens, .ns = &kNobody});
  }
  /// As the engine does between two steps.
  void tell_all_when_wanted(std::uint8_t n) {
    for (int ms = 0; !feed.wants_all(); ++ms) {
      ASSERT_LT(ms, kPatienceMs);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    feed.begin_all();
    for (std::uint8_t i = 1; i <= n; ++i) enter(i);
    feed.end_all();
  }
  /// The batch that tells all. Whoever came early hears before it that the server has begun.
  static Frames hear_all(Peer& peer) {
    Frames frames = peer.receive();
    if (json::from_msgpack(frames.at(2))[1].size() == 1) frames = peer.receive();
    return frames;
  }

  std::atomic<bool> wanted = false;
  ChangeFeed feed;
  Publisher publisher{{.endpoint = place("events"),
                       .replay = place("replay"),
                       .topic = "kv@here",
                       .most_batches = 3,
                       .between_all = std::chrono::milliseconds(20)},
                      feed};
};

TEST_F(PublisherTest, TellsAllToWhoeverSubscribes) {
  Peer peer(ZMQ_SUB, publisher.endpoint(), "kv@");
  tell_all_when_wanted(3);
  const Frames frames = hear_all(peer);
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_EQ(frames[0], "kv@here");
  ASSERT_EQ(frames[1].size(), 8U);
  const json batch = json::from_msgpack(frames[2]);
  EXPECT_EQ(batch[1][0]["type"], "AllBlocksCleared");
  EXPECT_EQ(batch[1].size(), 4U);
  EXPECT_TRUE(wanted);

  enter(9);
  const Frames next = peer.receive();
  EXPECT_EQ(number_of(next[1]), number_of(frames[1]) + 1);
  EXPECT_EQ(json::from_msgpack(next[2])[1][0]["token_ids"], json({9, 2, 3, 4}));

  Peer other(ZMQ_SUB, publisher.endpoint(), "kv@");
  tell_all_when_wanted(2);
  EXPECT_EQ(other.receive(), peer.receive());
}

TEST_F(PublisherTest, RepeatsWhatSomebodyMissed) {
  Peer peer(ZMQ_SUB, publisher.endpoint());
  tell_all_when_wanted(1);
  std::vector<Frames> heard{hear_all(peer)};
  for (std::uint8_t n = 2; n < 7; ++n) {
    enter(n);
    heard.push_back(peer.receive());
  }
  const std::uint64_t last = number_of(heard.back()[1]);
  Peer asks(ZMQ_DEALER, place("replay"));
  const auto answers = [&](std::uint64_t from) {
    asks.send({"", bytes_of(from)});
    std::vector<Frames> got;
    for (;;) {
      got.push_back(asks.receive());
      if (got.back().size() != 4 || got.back()[2] == bytes_of(~std::uint64_t{0})) return got;
    }
  };
  const auto some = answers(last - 1);
  ASSERT_EQ(some.size(), 3U);
  EXPECT_EQ(some[0], (Frames{"", heard[4][0], heard[4][1], heard[4][2]}));
  EXPECT_EQ(some[1], (Frames{"", heard[5][0], heard[5][1], heard[5][2]}));
  EXPECT_EQ(some[2], (Frames{"", "", bytes_of(~std::uint64_t{0}), ""}));
  EXPECT_EQ(answers(0).size(), 4U);  // three are kept
  EXPECT_EQ(answers(last + 1).size(), 1U);
  asks.send({"", "seven"});  // is no number: nobody answers, and the next one is answered
  EXPECT_EQ(answers(last).size(), 2U);
}

TEST_F(PublisherTest, TakesNoLargeFrames) {
  Peer large(ZMQ_DEALER, place("replay"));
  EXPECT_TRUE(large.sends_in_vain({"", std::string(std::size_t{1} << 20, 'x')}));
}

TEST_F(PublisherTest, SaysWhatItCannotBind) {
  ChangeFeed other;
  EXPECT_THROW(Publisher({.endpoint = "tcp://192.0.2.1:1"}, other), std::runtime_error);
  EXPECT_THROW(Publisher({.endpoint = "nonsense"}, other), std::runtime_error);
}

}  // namespace
}  // namespace coppice::events
