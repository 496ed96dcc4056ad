// The reply to a generation: waits for a job's news, lets an Answer put them into words, and writes those, at once or
// as a stream. Runs on the io thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "engine/request.h"
#include "server/base/reply.h"
#include "server/jobs/answer.h"
#include "server/jobs/job.h"

namespace coppice::server {

/// Hears how a reply goes.
class ReplyObserver {
 public:
  /// Seconds since the request came.
  virtual void observe_first_token(double seconds) = 0;
  /// The whole reply went well. `decode_seconds`: from the first token to the last; `tokens`: of a choice, on average.
  virtual void observe_request(double seconds, double decode_seconds, int tokens) = 0;
  virtual void count_rejected(engine::Refusal why) = 0;

 protected:
  ~ReplyObserver() = default;
};

struct ReplyTerms {
  bool stream = false;
  std::string request_id{};                                       ///< for errors in mid-stream
  engine::Clock::time_point start;                                ///< when the request came
  engine::Clock::duration ping = engine::Clock::duration::max();  ///< a stream's longest silence
  std::function<std::string()> silent_for{};                      ///< why, if not as usual; empty: as usual
  std::size_t max_answer_bytes = static_cast<std::size_t>(-1);    ///< of a whole answer; a stream may be of any length
};

/// Throws RequestError while there is still a status to set, that is before a stream's head. The head waits for the
/// first token, but no longer than `ping`: after that much silence, and again, a comment keeps the client and all
/// between from giving up, and says `silent_for`. Throws boost::system::system_error when the client is gone or reads
/// too slowly.
boost::asio::awaitable<void> reply_with(Job& job, Answer& answer, ReplyTerms terms, ReplyObserver& observer,
                                        ReplyWriter& out);

/// For what has to be done before the reply's job begins: waits for `work`, and meanwhile comments go out as
/// reply_with()'s do. False: it was cancelled, as it was not over by `deadline`. Throws what `work` throws, at whatever
/// time, and boost::system::system_error as reply_with().
boost::asio::awaitable<bool> keep_alive(boost::asio::awaitable<void> work,
                                        std::optional<engine::Clock::time_point> deadline, const ReplyTerms& terms,
                                        ReplyWriter& out);

}  // namespace coppice::server
