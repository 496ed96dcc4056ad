// When requests are cancelled: an input is a script for the engine on the fake executor, stepped by hand
// (engine/harness.h).
//
// The first eight bytes pick the set-up: layer groups, pool, limits. Then come actions, a letter each, with one byte
// for each operand; '0' stands for 0, so that scripts can be written by hand:
//   s  submit: shared beginning, its length, own end, its length, answer's length, samples and salt, priority, deadline
//   a  go on with a request's prompt and answer: which (from the latest back), the new end, the answer's length
//   c  cancel a request, whatever has become of it: which      u  cancel an id that nobody has
//   +  8 steps      t  the clock moves: milliseconds      x  a forward fails: how many from now
//   q  stop: every open request ends, and what comes after is refused
// and any other byte is a step. The harness checks each step. At the end every request must have had one last event,
// for a reason that it was given, those that nobody stopped the whole of the right answer; and no block is held.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "engine/harness.h"
#include "fuzz/fuzz.h"

namespace coppice::testing {
namespace {

using engine::Refusal;
using sampling::Finish;

constexpr std::size_t kMaxRequests = 40;
constexpr int kMaxSteps = 300;
constexpr engine::RequestId kNobody = 1'000'000;

/// What the harness expects in vain is a finding.
class FailuresAreFindings final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed()) finding(result.message());
  }
};

HarnessConfig read_config(Script& in) {
  constexpr int kBlockSize = 4;
  const auto groups = static_cast<Groups>(in.number(3));
  const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
  const int flags = in.number(8);
  return {.groups = groups,
          .block_size = kBlockSize,
          .num_blocks = 2 + n_groups * (8 + in.number(60)),
          .max_batch = 1 + in.number(10),
          .step_tokens = 1 + in.number(60),
          .max_extend = 1 + in.number(40),
          .context_length = (flags & 1) != 0 ? 60 : 0,
          .max_waiting = (flags & 2) != 0 ? std::size_t{3} : 4096,
          .share = in.number(8) < 7,
          .growth_room = (flags & 4) == 0,
          .patience = in.number(8)};
}

/// `n` tokens of the text with this number.
Prompt text(int number, int n) {
  std::mt19937_64 random(static_cast<std::uint64_t>(number));
  return random_prompt(random, static_cast<std::size_t>(n));
}

class Run {
 public:
  explicit Run(Script in) : in_(in), h_(read_config(in_)) {}

  void run() {
    while (!in_.empty() && h_.steps() < kMaxSteps && !stopped_) act(in_.letter());
    h_.finish();
    for (const auto& [id, result] : h_.results()) {
      const std::string wrong = wrong_end(id, result);
      if (!wrong.empty()) finding("request " + std::to_string(id) + ": " + wrong);
    }
    check_counts();
  }

 private:
  void act(char action) {
    switch (action) {
      case 's':
        return submit(fresh());
      case 'a':
        return ids_.empty() ? void() : submit(next_turn());
      case 'c':
        return ids_.empty() ? void() : cancel(some_id());
      case 'u':
        return h_.cancel(kNobody);
      case 't':
        h_.now += std::chrono::milliseconds(in_.number(100));
        return;
      case 'x':
        return h_.executor().fail_at(static_cast<int>(h_.executor().steps().size()) + in_.number(16));
      case 'q':
        return stop();
      case '+':
        for (int i = 0; i < 8; ++i) step();
        return;
      default:
        return step();
    }
  }

  engine::RequestId some_id() {
    return ids_[ids_.size() - 1 - static_cast<std::size_t>(in_.number(static_cast<int>(ids_.size())))];
  }

  Submission fresh() {
    Submission s;
    const int beginning = in_.number(4);
    s.prompt = text(beginning, in_.number(50));
    const int end = in_.number(16);
    s.prompt = s.prompt + text(100 + end, in_.number(20));
    s.max_tokens = length_of_answer();
    const int kind = in_.number(8);
    s.n = 1 + kind % 4;
    s.salt = kind < 4 ? "" : "other";
    s.priority = in_.number(4) - 2;
    if (const int deadline = in_.number(50); deadline >= 10) s.deadline = h_.now + std::chrono::milliseconds(deadline);
    return s;
  }

  Submission next_turn() {
    const Result& before = h_.result(some_id());
    Submission s{.prompt = before.submission.prompt + before.samples[0].tokens, .salt = before.submission.salt};
    const int end = in_.number(16);
    s.prompt = s.prompt + text(200 + end, end);
    s.max_tokens = length_of_answer();
    return s;
  }

  /// Of 1 to 40 tokens; where the context ends it anyway, one in 40 asks for as many as can be asked for.
  std::int32_t length_of_answer() {
    const int number = in_.number(40);
    const bool endless = number == 39 && h_.executor().info().context_length > 0;
    return endless ? std::numeric_limits<std::int32_t>::max() : 1 + number;
  }

  /// An empty prompt stays one: it is refused.
  void submit(Submission s) {
    if (ids_.size() == kMaxRequests) return;
    s.seed = 100 * ids_.size();
    ids_.push_back(h_.submit(std::move(s)));
  }

  void cancel(engine::RequestId id) {
    h_.cancel(id);
    if (!h_.result(id).done) cancelled_.insert(id);
  }

  void step() {
    h_.step();
    for (const auto id : cancelled_) {
      if (!h_.result(id).done) finding("request " + std::to_string(id) + " outlives its cancellation by a step");
    }
  }

  void stop() {
    h_.engine().stop();
    stopped_ = true;
    for (int late = in_.number(3); late > 0; --late) submit(fresh());
  }

  /// Why a request must not have ended as it did; empty: it may.
  std::string wrong_end(engine::RequestId id, const Result& result) {
    const bool refused = result.refusal.has_value();
    const bool failed = std::ranges::any_of(h_.executor().steps(), &FakeExecutor::StepLog::failed);
    const auto is_cancelled = [](const SampleResult& sample) { return sample.finish == Finish::kCancelled; };
    if (!refused && cancelled_.contains(id) && std::ranges::none_of(result.samples, is_cancelled))
      return "its cancellation was not obeyed";
    if (refused && *result.refusal == Refusal::kShutdown && !stopped_) return "refused for a shutdown that was none";
    if (refused && *result.refusal == Refusal::kTimeout && !result.submission.deadline) return "it had no deadline";
    if (refused && *result.refusal == Refusal::kFailed && !failed) return "no step failed";
    for (const auto& sample : result.samples) {
      if (refused) break;
      if (is_cancelled(sample) && !cancelled_.contains(id) && !stopped_) return "nobody cancelled it";
      if (sample.finish == Finish::kTimeout && !result.submission.deadline) return "it had no deadline";
      if (sample.finish == Finish::kError && !failed) return "no step failed";
    }
    return {};
  }

  void check_counts() const {
    const auto s = h_.snapshot();
    const auto ended =
        s.requests_finished + s.requests_cancelled + s.requests_timed_out + s.requests_refused + s.requests_failed;
    if (s.requests_submitted != ended) finding("requests are lost in the figures");
    if (s.requests_cancelled > 0 && cancelled_.empty() && !stopped_) finding("counted as cancelled, but by whom?");
  }

  Script in_;
  Harness h_;
  std::vector<engine::RequestId> ids_;
  std::set<engine::RequestId> cancelled_;  ///< while they were open
  bool stopped_ = false;
};

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace coppice::testing;
  [[maybe_unused]] static const bool listening = [] {
    ::testing::UnitTest::GetInstance()->listeners().Append(new FailuresAreFindings);
    return true;
  }();
  Run(Script({data, size})).run();
  return 0;
}
