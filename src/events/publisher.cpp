#include "events/publisher.h"

#include <fmt/format.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::events {

namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::shared_ptr<const std::string>;

constexpr int kMostQueued = 20'000;           // messages to one peer; what comes then is lost to it
constexpr std::int64_t kMostReceived = 4096;  // bytes of a frame; whoever sends more is disconnected
constexpr int kLingerMs = 200;
constexpr std::size_t kNumberBytes = 8;

using Number = std::array<char, kNumberBytes>;

Number to_bytes(std::uint64_t number) {
  Number bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(number >> (8 * (kNumberBytes - 1 - i)));
  return bytes;
}

std::string_view view(const Number& number) {
  return {number.data(), number.size()};
}

/// False: the peer is gone, or has too much to read already.
bool send(void* socket, std::string_view frame, bool more) {
  return zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

/// The same of a message's last frame, without a copy for each peer.
bool send(void* socket, const Bytes& frame) {
  auto* held = new Bytes(frame);
  zmq_msg_t message;
  const auto release = [](void*, void* hint) { delete static_cast<Bytes*>(hint); };
  if (zmq_msg_init_data(&message, const_cast<char*>(frame->data()), frame->size(), release, held) != 0) {
    delete held;
    return false;
  }
  if (zmq_msg_send(&message, socket, ZMQ_DONTWAIT) >= 0) return true;
  zmq_msg_close(&message);
  return false;
}

/// The frames of a message; empty: there is none.
std::vector<std::string> receive(void* socket) {
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
  }
  return frames;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Publisher::Sockets {
  Sockets() : context(zmq_ctx_new()) {
    if (context == nullptr) throw std::runtime_error("ZeroMQ can't be used: there is no memory for it.");
  }
  ~Sockets() {
    if (events != nullptr) zmq_close(events);
    if (replay != nullptr) zmq_close(replay);
    zmq_ctx_term(context);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  void* bind(int type, const std::string& endpoint) {
    void* socket = zmq_socket(context, type);
    if (socket == nullptr) throw std::runtime_error(fmt::format("ZeroMQ can't be used: {}.", zmq_strerror(errno)));
    const auto set = [&](int option, int value) { zmq_setsockopt(socket, option, &value, sizeof value); };
    set(ZMQ_LINGER, kLingerMs);
    set(ZMQ_SNDHWM, kMostQueued);
    set(ZMQ_IPV6,
        endpoint.find_first_of("[*") != endpoint.npos ? 1 : 0);  // else 127.0.0.1 is [::ffff:127.0.0.1] in the log
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &kMostReceived, sizeof kMostReceived);
    if (type == ZMQ_XPUB) set(ZMQ_XPUB_VERBOSE, 1);
    if (type == ZMQ_ROUTER) set(ZMQ_ROUTER_MANDATORY, 1);
    if (zmq_bind(socket, endpoint.c_str()) != 0) {
      const std::string why = zmq_strerror(errno);
      zmq_close(socket);
      throw std::runtime_error(fmt::format("KV events can't be sent on {}: {}.", endpoint, why));
    }
    return socket;
  }

  void* context;
  void* events = nullptr;
  void* replay = nullptr;
};

Publisher::Publisher(PublisherOptions options, ChangeFeed& feed)
    : options_(std::move(options)),
      feed_(feed),
      sockets_(std::make_unique<Sockets>()),
      log_(0, options_.most_batches, options_.most_bytes) {
  sockets_->events = sockets_->bind(ZMQ_XPUB, options_.endpoint);
  if (!options_.replay.empty()) sockets_->replay = sockets_->bind(ZMQ_ROUTER, options_.replay);
  feed_.on_change([this] { doorbell_.ring(); });
}

Publisher::~Publisher() {
  thread_.request_stop();
  doorbell_.ring();
  if (thread_.joinable()) thread_.join();
}

std::string Publisher::endpoint() const {
  std::array<char, 256> text{};
  std::size_t size = text.size();
  if (zmq_getsockopt(sockets_->events, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return options_.endpoint;
  return text.data();
}

void Publisher::start(EncodeOptions encoding) {
  thread_ = std::jthread([this, encoding](const std::stop_token& stop) {
    doorbell_.ring();  // there may be something already
    while (!stop.stop_requested()) {
      try {
        run(encoding);
      } catch (const std::exception& e) {  // no memory, or OpenSSL refuses
        options_.say(fmt::format("KV events were lost: {}; all are told anew", e.what()));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        feed_.want_all();
      }
    }
  });
}

// One round: what has come up to now.
void Publisher::run(const EncodeOptions& encoding) {
  std::array<zmq_pollitem_t, 3> items = {{{sockets_->events, 0, ZMQ_POLLIN, 0},
                                          {nullptr, doorbell_.file(), ZMQ_POLLIN, 0},
                                          {sockets_->replay, 0, ZMQ_POLLIN, 0}}};
  const int n = sockets_->replay != nullptr ? 3 : 2;
  long timeout = -1;
  if (newcomers_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_all_ - Clock::now());
    timeout = std::max<long>(0, static_cast<long>(left.count()));
  }
  zmq_poll(items.data(), n, timeout);
  if (items[0].revents != 0) see_subscribers();
  if (newcomers_ && Clock::now() >= next_all_) {
    newcomers_ = false;
    next_all_ = Clock::now() + options_.between_all;
    feed_.want_all();
  }
  if (items[1].revents != 0) {
    std::this_thread::sleep_for(options_.gathers);  // a step changes many at once
    doorbell_.answer();
    publish(encoding);
  }
  if (n > 2 && items[2].revents != 0) answer_missed();
}

void Publisher::publish(const EncodeOptions& encoding) {
  for (std::string& batch : encode(feed_.take(), encoding, seconds_now())) {
    const auto bytes = std::make_shared<const std::string>(std::move(batch));
    const Number number = to_bytes(log_.add(bytes));
    send(sockets_->events, options_.topic, /*more=*/true) && send(sockets_->events, view(number), /*more=*/true) &&
        send(sockets_->events, bytes);
  }
}

// Subscriptions come as messages: 1 and the topic, or 0 when they end.
void Publisher::see_subscribers() {
  for (auto frames = receive(sockets_->events); !frames.empty(); frames = receive(sockets_->events))
    newcomers_ |= !frames[0].empty() && frames[0][0] == 1;
}

void Publisher::answer_missed() {
  void* const socket = sockets_->replay;
  for (auto frames = receive(socket); !frames.empty(); frames = receive(socket)) {
    if (frames.size() != 3 || frames[2].size() != kNumberBytes) continue;
    std::uint64_t number = 0;
    for (const char byte : frames[2]) number = number << 8 | static_cast<std::uint8_t>(byte);
    bool reads = true;
    const auto begin = [&](std::string_view topic, std::uint64_t of) {
      const Number bytes = to_bytes(of);
      return send(socket, frames[0], true) && send(socket, "", true) && send(socket, topic, true) &&
             send(socket, view(bytes), true);
    };
    for (number = std::max(number, log_.first()); reads && number < log_.end(); ++number)
      reads = begin(options_.topic, number) && send(socket, log_.at(number));
    if (reads) begin("", ~std::uint64_t{0}) && send(socket, "", false);
  }
}

}  // namespace coppice::events
