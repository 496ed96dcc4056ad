// Publisher: sends KV events to routers over ZeroMQ, as vLLM's publisher does, on a thread of its own.
//
// On the one endpoint it publishes: three frames, the topic, the batch's number (8 bytes, big-endian), the batch
// (encode.h). On the other it answers those who missed some: to [empty, first number] come [empty, topic, number,
// batch] for each that it still has from there on, then [empty, empty, -1, empty].
//
// Numbers begin at 0, as vLLM's: vllm-router asks for batches from 0 on when it connects, and takes no others for the
// first ones. What vLLM doesn't do: whoever subscribes is told all that there is, behind an AllBlocksCleared; so is
// everybody else then.
//
// Thread safety: none is needed; its thread reaches others through the ChangeFeed, which outlives it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "events/change_feed.h"
#include "events/encode.h"
#include "events/replay_log.h"
#include "port/doorbell.h"

namespace coppice::events {

struct PublisherOptions {
  std::string endpoint;  ///< to bind: tcp://127.0.0.1:5557, tcp://*:5557, ipc:///run/events
  std::string replay;    ///< to bind, for replays; empty: nobody is answered
  std::string topic;
  std::size_t most_batches = 10'000;               ///< that are kept
  std::size_t most_bytes = std::size_t{64} << 20;  ///< of these
  std::chrono::milliseconds gathers{2};            ///< before it takes what has changed
  std::chrono::milliseconds between_all{1000};     ///< from one time that all is told to the next one, at least
  std::function<void(const std::string&)> say = [](const auto&) {
  };  ///< gets a line when something fails; on its thread
};

class Publisher {
 public:
  /// Opens the sockets. Throws std::runtime_error: a sentence.
  Publisher(PublisherOptions options, ChangeFeed& feed);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  /// Begins to send what the feed has. Once.
  void start(EncodeOptions encoding);
  /// Of the first endpoint, as it was bound: with the port that the system chose.
  std::string endpoint() const;

 private:
  struct Sockets;

  void run(const EncodeOptions& encoding);
  void publish(const EncodeOptions& encoding);
  void see_subscribers();
  void answer_missed();

  const PublisherOptions options_;
  ChangeFeed& feed_;
  port::Doorbell doorbell_;
  std::unique_ptr<Sockets> sockets_;
  ReplayLog log_;
  bool newcomers_ = false;  // they are not told yet
  std::chrono::steady_clock::time_point next_all_{};
  std::jthread thread_;
};

}  // namespace coppice::events
