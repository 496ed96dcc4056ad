#include "engine/outbox.h"

#include <exception>
#include <iterator>
#include <utility>

#include "kv/reserve_more.h"

namespace coppice::engine {

void Outbox::make_room() {
  kv::reserve_more(events_, 1);
}

void Outbox::piece(OpenRequest& open, int sample, sampling::Piece piece) {
  make_room();
  Event event{.request = open.request.id, .sample = sample, .piece = std::move(piece)};
  event.report = std::exchange(open.report, nullptr);
  if (event.piece.finish) {
    open.ended[static_cast<std::size_t>(sample)] = true;
    if (--open.open_samples == 0) {
      event.done = true;
      event.usage = open.usage;
    }
  }
  events_.push_back(std::move(event));
}

void Outbox::end(OpenRequest& open, int sample, sampling::Finish finish, std::string message) {
  make_room();  // before the text is taken: it can be had once only
  sampling::Piece last{.token = -1};
  try {
    finish_piece(last, *open.request.samples[static_cast<std::size_t>(sample)], finish);
  } catch (const std::exception&) {
    if (finish != sampling::Finish::kError) throw;
    last = {.token = -1, .finish = finish};
  }
  piece(open, sample, std::move(last));
  events_.back().message = std::move(message);
}

void Outbox::refuse(OpenRequest& open, Refusal refusal, std::string message, double retry_seconds) {
  make_room();
  open.open_samples = 0;
  events_.push_back(Event{.request = open.request.id,
                          .piece = {.token = -1},
                          .done = true,
                          .usage = open.usage,
                          .refusal = refusal,
                          .message = std::move(message),
                          .retry_seconds = retry_seconds,
                          .report = std::exchange(open.report, nullptr)});
}

void Outbox::deliver(const EventSink& sink) {
  if (events_.empty()) return;
  sink(std::move(events_));
  events_.clear();
}

void finish_piece(sampling::Piece& last, sampling::Generation& generation, sampling::Finish finish) {
  sampling::Piece held = generation.flush();
  last.text += held.text;
  last.logprobs.insert(last.logprobs.end(), std::make_move_iterator(held.logprobs.begin()),
                       std::make_move_iterator(held.logprobs.end()));
  last.finish = finish;
}

}  // namespace coppice::engine
