// What goes into the engine and what comes out: plain data, moved between threads through queues; who holds a piece of
// it has it alone. Lengths and positions are in tokens. Times are in seconds, of Clock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/cache_report.h"
#include "engine/pinned_prefix.h"
#include "engine/prompt.h"
#include "kv/namespace.h"
#include "kv/types.h"
#include "sampling/generation.h"

namespace coppice::engine {

/// Chosen by the submitter's side (Engine::next_id()), unique for the life of the process.
using RequestId = std::uint64_t;

using Clock = std::chrono::steady_clock;

/// The log-probabilities of a prompt's tokens.
struct PromptScoring {
  std::shared_ptr<sampling::Scorer> scorer;
  std::int32_t from = 1;  ///< the first token wanted, counted from 0; the prompt's first one has nothing before it
  int n_top = 0;          ///< alternatives to each
};

/// What samples of several requests may hold together, as a compiled grammar. All of them name the same object.
struct SharedMemory {
  std::shared_ptr<const void> what;  ///< null: nothing
  std::size_t bytes = 0;
};

/// Which of a prompt's hidden states make its embedding.
enum class Pooling : std::uint8_t {
  kLast,  ///< the last token's
  kMean,  ///< the mean of all tokens'
};

/// A prompt's embedding is wanted.
struct PromptPooling {
  Pooling kind = Pooling::kLast;
  std::vector<double> sum;  ///< [n_embd], zeros; the engine adds up there
};

/// n samples of one prompt. The prompt is prefilled once; the samples fork it without copying.
struct Request {
  RequestId id = 0;
  Prompt prompt;                           ///< at least one token
  std::optional<std::int32_t> max_tokens;  ///< per sample; none: as far as context and pool go; 0: only the prompt
  std::vector<std::unique_ptr<sampling::Generation>> samples;  ///< size n >= 1
  SharedMemory shared;                                         ///< what they hold with others
  kv::Namespace ns;                                            ///< nothing is shared with requests of another
  std::vector<PinWish> pins;                                   ///< the shortest first; none longer than the prompt
  std::size_t held_bytes = 0;                                  ///< kept for the answer, until its end, by who asks
  std::string pin_payer;                                       ///< see PrefixOwner
  std::int32_t priority = 0;                                   ///< lower goes first
  std::optional<PromptScoring> scoring;                        ///< asks for ScoredTokens
  std::optional<PromptPooling> pooling;                        ///< asks for an Embedding; then max_tokens is 0
  bool match_cache = true;                                     ///< false: all of the prompt is computed, and cached
  bool cache_report = false;                                   ///< wants one, if it is admitted: Event::report
  bool progress = false;                                       ///< wants Progress, and usage with each token
  std::optional<Clock::time_point> deadline;                   ///< of all of it, the time in the queue included
  Clock::time_point submitted{};                               ///< set by Engine::submit()
};

struct Usage {
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;      ///< prompt tokens found in the tree at first admission, or loaded then
  std::int32_t completion_tokens = 0;  ///< over all samples
  double prompt_seconds = 0;           ///< from the first admission to the first token; 0: there was none
  double decode_seconds = 0;           ///< from there to the last
  std::vector<PinOutcome> pins;        ///< of Request::pins, in order; as many as it came to
  std::int32_t loaded_tokens = 0;      ///< of cached_tokens
};

/// How far a request's prompt is.
struct Progress {
  std::int32_t computed = 0;  ///< of its tokens, those found in the tree included
  Usage usage;                ///< so far; prompt_seconds: since the first admission
};

/// Why a request got no tokens.
enum class Refusal : std::uint8_t {
  kTooLong,         ///< can never fit: prompt over the context or the pool. Message holds the figures
  kTooManySamples,  ///< can never fit, but one sample of it could
  kQueueFull,
  kShutdown,
  kFailed,         ///< the executor or its sampler threw, or memory ran out; the message says what
  kTimeout,        ///< the deadline passed before the first token
  kUnsatisfiable,  ///< sampling::Unsatisfiable; the message says what is asked too much
  kTooHeavy,       ///< can never be let in: alone it weighs more than all requests may. Message holds the figures
  kNoMemory,       ///< executor::OutOfMemory: it may run later. Message holds the figures
};
inline constexpr std::size_t kRefusals = 9;

/// What a sample's next token brought, or the sample's end. A sample's last one has `piece.finish`.
struct Sampled {
  int sample = 0;               ///< which of Request::samples
  sampling::Piece piece;        ///< without a token (-1): nothing but an end
  std::optional<Usage> so_far;  ///< with each token of a request that asked for its progress
  std::string message;          ///< with kError and kUnsatisfiable
};

/// The prompt's next tokens, of a request that has them scored: in order, each once, before the first Sampled.
struct ScoredTokens {
  std::vector<sampling::PromptToken> tokens;
};

/// Of a request that asked for it, before its last event.
struct Embedding {
  std::vector<float> values;  ///< [n_embd], of any length
};

/// Nothing was or will be generated. It is the request's last event.
struct Refused {
  Refusal why = Refusal::kFailed;
  std::string message;
  double retry_seconds = 0;  ///< with kQueueFull: by then the queue should have drained
};

/// One thing that happened to a request in a step.
struct Event {
  RequestId request = 0;  ///< Request::id
  /// Progress, of a request that asked: first what was found in the tree, then each step that computed more of the
  /// prompt.
  std::variant<Sampled, ScoredTokens, Embedding, Progress, Refused> news;
  std::optional<Usage> ended;  ///< with the request's last event: all of it
  /// Of a request that asked, with its first event after its admission: whoever was admitted has one.
  std::shared_ptr<const CacheReport> report;
};

/// Called once per step on the engine's thread with all of the step's events; must not block, must not throw.
using EventSink = std::function<void(std::vector<Event>&&)>;

}  // namespace coppice::engine
