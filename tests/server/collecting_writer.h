// CollectingWriter: a ReplyWriter that keeps what is written.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/reply.h"

namespace coppice::testing {

class CollectingWriter final : public server::ReplyWriter {
 public:
  boost::asio::awaitable<void> send(server::Reply sent) override {
    begun_ = true;
    text += sent.body;
    reply = std::move(sent);
    during("send");
    co_return;
  }
  boost::asio::awaitable<void> begin_stream() override {
    begun_ = true;
    during("begin");
    co_return;
  }
  boost::asio::awaitable<void> write(std::string_view events) override {
    text += events;
    during("write");
    co_return;
  }
  boost::asio::awaitable<void> end_stream() override {
    ended = true;
    co_return;
  }
  bool begun() const override { return begun_; }
  bool streaming() const override { return begun_; }

  /// Called in the middle of each.
  std::function<void(const std::string& where)> during = [](const std::string&) {};
  server::Reply reply;  ///< a whole one
  std::string text;     ///< its body, or a stream's events
  bool ended = false;   ///< the stream

 private:
  bool begun_ = false;
};

}  // namespace coppice::testing
