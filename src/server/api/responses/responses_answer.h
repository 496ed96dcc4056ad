// Answers of OpenAI's Responses API: a body, or a stream of named and numbered events.
//
// Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "port/move_only_function.h"
#include "server/api/base/dialect.h"
#include "server/api/responses/response_store.h"
#include "server/jobs/answer.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

class ResponsesAnswer final : public Answer {
 public:
  /// Keeps a response under its id: as JSON without its output, and the output. Returns false if there is no room.
  using Store = port::MoveOnlyFunction<bool(std::string id, std::string body, std::vector<ConversationItem> output)>;

  /// settings: what it was drawn with. repeated: ResponseTerms::repeated. store: called once, at the end; empty: it is
  /// not to be stored.
  ResponsesAnswer(AnswerHead head, bool stream, JsonObject settings, std::string repeated = "", Store store = {},
                  Telemetry telemetry = {})
      : head_(std::move(head)),
        stream_(stream),
        settings_(std::move(settings)),
        repeated_(std::move(repeated)),
        store_(std::move(store)),
        telemetry_(telemetry),
        bytes_(repeated_.size()) {}

  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override;
  std::size_t bytes() const override { return stream_ ? 0 : bytes_; }

 private:
  enum class Kind : std::uint8_t { kReasoning, kText, kCall };
  struct Item {
    Kind kind;
    std::string id;
    std::string call_id, name;  ///< of a call
    std::string text;           ///< or a call's arguments
    bool cut = false;           ///< the answer ended in the middle of it
  };

  std::string add(Kind kind, const CallDelta* call, const std::string& text);
  std::string open(Kind kind, const CallDelta* call);
  std::string close();
  std::string begin();
  std::string about_prompt(const Delta& delta) const;
  /// With the number. `response`: a further field, as JSON; empty: none.
  std::string event(const char* type, JsonObject data, const std::string& response = "") const;
  /// With the item's place, too.
  std::string item_event(const char* type, JsonObject data) const;
  JsonObject response(const char* status) const;
  /// As JSON, with what is repeated of the request.
  std::string whole(const JsonObject& response) const;
  bool keep(const JsonObject& response);
  static JsonObject item_json(const Item& item, bool whole);
  static JsonObject part_json(const Item& item);

  AnswerHead head_;
  bool stream_;
  JsonObject settings_;
  std::string repeated_;
  Store store_;
  Telemetry telemetry_;
  std::optional<engine::Usage> so_far_;  ///< of the delta in hand
  std::vector<Item> items_;
  bool begun_ = false, open_ = false;  ///< the last item is
  std::optional<sampling::Finish> finish_;
  std::int64_t reasoning_tokens_ = 0;
  std::size_t bytes_;
  mutable std::int64_t n_events_ = 0;
};

}  // namespace coppice::server
