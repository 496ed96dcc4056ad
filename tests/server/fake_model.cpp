#include "server/fake_model.h"

#include <stdexcept>
#include <utility>
#include <variant>

#include "support/longest_wait.h"

namespace coppice::testing {

namespace {

class NoGeneration final : public sampling::Generation {
 public:
  sampling::Piece next(std::span<float>) override { throw std::logic_error("no engine here"); }
  sampling::Piece flush() override { return {}; }
};

}  // namespace

FakeModel::FakeModel(engine::EventSink sink, Script script) : sink_(std::move(sink)), script_(std::move(script)) {
  facts_ = {.attention = "none", .kv_format = "f16", .n_vocab = 256, .context_length = 100, .max_batch = 4};
}

std::vector<kv::Token> FakeModel::tokenize(const text::MarkedView& text, bool, bool, std::size_t most) const {
  on_text_();
  std::vector<kv::Token> tokens;
  for (const char c : text.text.substr(0, most + 1)) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::vector<kv::Token> FakeModel::prompt_tokens(const text::MarkedView& text, std::string_view cache_salt,
                                                const std::string&, std::size_t most) const {
  {
    const std::lock_guard lock(mutex_);
    tokenized_salts_.emplace_back(cache_salt);
  }
  return tokenize(text, true, true, most);
}

std::string FakeModel::detokenize(std::span<const kv::Token> tokens, bool) const {
  on_detokenize_();
  return {tokens.begin(), tokens.end()};
}

text::ToolPrompt FakeModel::render(const text::ToolChat& chat) const {
  on_text_();
  std::string out;
  for (const auto& tool : chat.tools) out += tool.name + "\n";
  for (const auto& m : chat.messages) {
    if (m.content == "alien") throw text::TemplateError("no aliens");
    out += m.role + ": ";
    if (!m.reasoning.empty()) out += "(" + m.reasoning + ") ";
    for (const auto& call : m.calls) out += call.name + call.arguments + " ";
    out += m.content + "\n";
  }
  if (chat.end == text::TurnEnd::kContinue) out.pop_back();
  if (chat.end == text::TurnEnd::kOpenTurn) out += "assistant: ";
  text::ToolPrompt prompt{.prompt = std::move(out)};
  if (!chat.tools.empty() && chat.may_call && !calls_.empty()) {
    prompt.grammar = calls_;
    prompt.from = prompt.begun = "<call>";
  }
  return prompt;
}

namespace {

const grammar::Compiler& byte_compiler() {
  static const grammar::Compiler compiler([] {
    grammar::Words bytes{.ends = {0}};
    for (int byte = 0; byte < 256; ++byte) bytes.pieces.emplace_back(1, static_cast<char>(byte));
    return bytes;
  }());
  return compiler;
}

}  // namespace

std::shared_ptr<const grammar::Grammar> FakeModel::compile(const grammar::Source& source, double seconds) const {
  return byte_compiler().compile(source, seconds);
}

std::shared_ptr<const grammar::Grammar> FakeModel::compiled(const grammar::Source& source) const {
  return byte_compiler().find(source);
}

std::vector<std::unique_ptr<sampling::Generation>> FakeModel::make_generations(
    const std::shared_ptr<const sampling::SharedParams>&, int n, std::span<const kv::Token>) const {
  std::vector<std::unique_ptr<sampling::Generation>> generations;
  for (int i = 0; i < n; ++i) generations.push_back(std::make_unique<NoGeneration>());
  return generations;
}

engine::RequestId FakeModel::next_id() {
  const std::lock_guard lock(mutex_);
  return ++last_id_;
}

void FakeModel::submit(engine::Request request) {
  std::vector<std::vector<engine::Event>> steps;
  if (script_) steps = script_(request);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(std::move(request));
  }
  changed_.notify_all();
  for (auto& step : steps) sink_(std::move(step));
}

void FakeModel::cancel(engine::RequestId id) noexcept {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.insert(id);
  }
  changed_.notify_all();
}

std::vector<engine::Question> FakeModel::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

bool FakeModel::still_asked(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return kept_.at(nth).wanted();
}

void FakeModel::answer(std::size_t nth, engine::View view) {
  const std::lock_guard lock(mutex_);
  kept_.at(nth).give(std::make_shared<const engine::View>(std::move(view)));
}

bool FakeModel::ask(engine::Question question, engine::Reply<engine::View> reply) {
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(std::move(question));
    if (keeps_questions_) {
      kept_.push_back(std::move(reply));
      return true;
    }
  }
  reply.give(std::make_shared<const engine::View>(view_));
  return true;
}

bool FakeModel::ask(engine::PrefixCommand, engine::Reply<engine::PrefixAnswer> reply) {
  reply.give(std::make_shared<const engine::PrefixAnswer>());
  return true;
}

engine::Snapshot FakeModel::snapshot() const {
  return snapshot_;
}

bool FakeModel::ended() const {
  const std::lock_guard lock(mutex_);
  return stopped_ && !never_ends_;
}

void FakeModel::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

bool FakeModel::wait(auto condition) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kLongestWait, condition);
}

engine::RequestId FakeModel::wait_submitted(std::size_t nth) {
  if (!wait([&] { return requests_.size() > nth; }))
    throw std::runtime_error("nobody submitted request " + std::to_string(nth));
  const std::lock_guard lock(mutex_);
  return requests_[nth].id;
}

bool FakeModel::wait_cancelled(engine::RequestId id) {
  return wait([&] { return cancelled_.contains(id); });
}

bool FakeModel::wait_stopped() {
  return wait([&] { return stopped_; });
}

bool FakeModel::cancelled(engine::RequestId id) const {
  const std::lock_guard lock(mutex_);
  return cancelled_.contains(id);
}

std::size_t FakeModel::submitted() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

std::vector<kv::Token> FakeModel::prompt(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).prompt.view().tokens();
}

std::string FakeModel::salt(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).ns.salt;
}

std::string FakeModel::payer(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).pin_payer;
}

std::vector<std::string> FakeModel::tokenized_salts() const {
  const std::lock_guard lock(mutex_);
  return tokenized_salts_;
}

std::int32_t FakeModel::priority(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).priority;
}

std::optional<engine::Clock::time_point> FakeModel::deadline(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).deadline;
}

bool FakeModel::cache_report(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).cache_report;
}

std::optional<std::int32_t> FakeModel::max_tokens(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).max_tokens;
}

std::optional<engine::PromptScoring> FakeModel::scoring(std::size_t nth) const {
  const std::lock_guard lock(mutex_);
  return requests_.at(nth).scoring;
}

sampling::Piece& piece_of(engine::Event& event) {
  return std::get<engine::Sampled>(event.news).piece;
}

engine::Event piece(engine::RequestId id, std::string text, int sample) {
  return {.request = id, .news = engine::Sampled{.sample = sample, .piece = {.token = 0, .text = std::move(text)}}};
}

engine::Event last(engine::RequestId id, std::string text, sampling::Finish finish, engine::Usage usage, int sample) {
  engine::Event event = piece(id, std::move(text), sample);
  piece_of(event).finish = finish;
  event.ended = std::move(usage);
  return event;
}

engine::Event refusal(engine::RequestId id, engine::Refusal why, std::string message) {
  return {.request = id, .news = engine::Refused{.why = why, .message = std::move(message)}, .ended = engine::Usage{}};
}

FakeModel::Script words(std::vector<std::string> texts, int cached_tokens) {
  return [texts = std::move(texts), cached_tokens](const engine::Request& request) {
    const auto n = static_cast<int>(request.samples.size());
    std::vector<std::vector<engine::Event>> steps;
    for (const std::string& text : texts) {
      auto& step = steps.emplace_back();
      for (int i = 0; i < n; ++i) step.push_back(piece(request.id, text, i));
    }
    for (engine::Event& event : steps.back()) piece_of(event).finish = sampling::Finish::kStop;
    steps.back().back().ended = engine::Usage{static_cast<std::int32_t>(request.prompt.size()), cached_tokens,
                                              static_cast<std::int32_t>(texts.size()) * n};
    return steps;
  };
}

}  // namespace coppice::testing
