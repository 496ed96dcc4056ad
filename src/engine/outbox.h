// Outbox: a step's events, and the one place that knows when a sample and a request are over. Not thread
// safe. Where something throws nothing has changed, but that held-back text may be lost: then the sample can still end
// with kError, which is no whole answer anyway.
#pragma once

#include <string>
#include <vector>

#include "engine/sequence.h"

namespace coppice::engine {

class Outbox {
 public:
  /// Room for one more event: the next piece() cannot fail.
  void make_room();

  /// A sampled token. With piece.finish the sample is over.
  void piece(OpenRequest& open, int sample, sampling::Piece piece);

  /// The engine ends a sample for a reason of its own: the text held back, no token (Piece::token is -1).
  void end(OpenRequest& open, int sample, sampling::Finish finish, std::string message);

  /// The whole request, of which nothing went out.
  void refuse(OpenRequest& open, Refusal refusal, std::string message, double retry_seconds = 0);

  bool empty() const { return events_.empty(); }
  /// What the sink doesn't take, because it throws, stays for the next time.
  void deliver(const EventSink& sink);

 private:
  std::vector<Event> events_;
};

/// Adds the text held back to the sample's last piece.
void finish_piece(sampling::Piece& last, sampling::Generation& generation, sampling::Finish finish);

}  // namespace coppice::engine
