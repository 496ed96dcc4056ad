#include "text/template_limits.h"

#include <chat.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <set>
#include <string_view>
#include <vector>

#include "check/assert.h"
#include "check/mutex.h"
#include "port/memory.h"
#include "port/turn.h"
#include "text/chat_template.h"

namespace coppice::text {

namespace {

std::chrono::nanoseconds thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

/// Those that live.
struct WorksUnderWay {
  void add(TemplateWork& work) {
    const check::Lock lock(mutex);
    works.insert(&work);
  }
  void remove(TemplateWork& work) {
    const check::Lock lock(mutex);
    works.erase(&work);
  }

  check::Mutex mutex;
  std::set<TemplateWork*> works COPPICE_GUARDED_BY(mutex);
  std::size_t resident COPPICE_GUARDED_BY(mutex) = 0;  ///< when none of them had made much yet
};

WorksUnderWay& under_way() {
  static WorksUnderWay all;
  return all;
}

[[noreturn]] void refuse(std::string_view what, std::size_t most) {
  throw TemplateError(fmt::format("the template has {}: at most {} are taken", what, most));
}

/// How deep trees may become that a parser makes of tokens: no deeper than a bracket's parts are many, where commas
/// begin anew. A bracket inside counts as its own longest stretch.
class ExpressionDepth {
 public:
  void see(const jinja::token& token) {
    using jinja::token;
    const auto is = [&](std::initializer_list<jinja::token::type> types) {
      return std::ranges::find(types, token.t) != types.end();
    };
    if (is({token::text, token::comment, token::open_expression, token::open_statement})) {
      open_.assign(1, {});
    } else if (is({token::open_paren, token::open_square_bracket, token::open_curly_bracket})) {
      open_.emplace_back();
      if (open_.size() > TemplateLimits::kBrackets + 1)
        refuse("too many brackets inside each other", TemplateLimits::kBrackets);
    } else if (is({token::close_paren, token::close_square_bracket, token::close_curly_bracket})) {
      const int inside = open_.back().longest();
      if (open_.size() > 1) open_.pop_back();
      add(inside + 1);
    } else if (is({token::comma})) {
      open_.back() = {.now = 0, .most = open_.back().longest()};
    } else {
      add(1);
    }
  }

 private:
  struct Bracket {
    int now = 0, most = 0;
    int longest() const { return std::max(now, most); }
  };

  void add(int depth) {
    open_.back().now += depth;
    if (open_.back().now > TemplateLimits::kParts) refuse("an expression of too many parts", TemplateLimits::kParts);
  }

  std::vector<Bracket> open_ = {{}};
};

/// Statements inside each other, and branches of an `if`, each of which is one inside the one before.
class BlockDepth {
 public:
  void see(std::string_view statement) {
    constexpr std::array<std::string_view, 6> kNames = {"if", "for", "macro", "call", "filter", "set"};
    const auto is_block = [&](std::string_view name) { return std::ranges::find(kNames, name) != kNames.end(); };
    if (statement.starts_with("end") && is_block(statement.substr(3))) {
      if (!open_.empty()) {
        depth_ -= open_.back();
        open_.pop_back();
      }
    } else if (statement == "elif" || statement == "else") {
      if (!open_.empty()) ++open_.back();
      ++depth_;
    } else if (is_block(statement)) {
      open_.push_back(1);
      ++depth_;
    }
    if (depth_ > TemplateLimits::kBlocks)
      refuse("too many statements or branches inside each other", TemplateLimits::kBlocks);
  }
  /// The last one was a `set` that has no end.
  void take_back() {
    --depth_;
    open_.pop_back();
  }

 private:
  std::vector<int> open_;
  int depth_ = 0;
};

}  // namespace

void check_template(const std::string& source) {
  if (source.size() > TemplateLimits::kSource) refuse(fmt::format("{} bytes", source.size()), TemplateLimits::kSource);
  const jinja::lexer_result lexed = jinja::lexer().tokenize(source);
  ExpressionDepth expressions;
  BlockDepth blocks;
  bool begins = false, sets = false;
  int brackets = 0;
  for (const jinja::token& token : lexed.tokens) {
    expressions.see(token);
    if (begins && token.t == jinja::token::identifier) {
      sets = token.value == "set";
      brackets = 0;
      blocks.see(token.value);
    }
    begins = token.t == jinja::token::open_statement;
    if (sets && token.t == jinja::token::equals && brackets == 0) {
      blocks.take_back();
      sets = false;
    }
    if (token.t == jinja::token::open_paren) ++brackets;
    if (token.t == jinja::token::close_paren) --brackets;
    if (token.t == jinja::token::close_statement) sets = false;
  }
}

thread_local TemplateWork* TemplateWork::current = nullptr;

const bool TemplateWork::kInstalled = (jinja::on_work = &TemplateWork::take, true);

TemplateWork::TemplateWork(At at, std::size_t input_bytes)
    : most_(at == At::kLoad ? TemplateLimits::kWorkAtLoad
                            : TemplateLimits::kWork + TemplateLimits::kWorkPerByte * input_bytes),
      input_(input_bytes),
      left_(most_),
      base_(static_cast<const char*>(__builtin_frame_address(0))),
      until_(thread_time() + TemplateLimits::kTime) {
  COPPICE_ASSERT(current == nullptr);
  under_way().add(*this);
  has_most_of_too_much();
  current = this;
}

TemplateWork::~TemplateWork() {
  current = nullptr;
  under_way().remove(*this);
}

void TemplateWork::check() const {
  if (ended_ != nullptr) throw TemplateError(ended_);
}

void TemplateWork::end(const char* reason) {
  ended_ = reason;
  throw TemplateError(reason);
}

void TemplateWork::take(std::size_t bytes) {
  if (current != nullptr) current->add(bytes);
}

/// The process has grown by too much, and by this work more than by the others.
bool TemplateWork::has_most_of_too_much() {
  constexpr std::size_t kMuch = std::size_t{16} << 20U;
  const std::size_t now = port::resident_memory();
  WorksUnderWay& all = under_way();
  const check::Lock lock(all.mutex);
  made_ = most_ - left_;
  std::size_t most_made = 0, most = TemplateLimits::kMemory;
  for (const TemplateWork* work : all.works) {
    most_made = std::max(most_made, work->made_);
    most += TemplateLimits::kMemoryPerByte * work->input_;
  }
  if (most_made < kMuch) all.resident = now;
  return now > all.resident + most && made_ == most_made;
}

void TemplateWork::add(std::size_t bytes) {
  constexpr std::size_t kStep = 16;  // a step that makes nothing takes time, too
  constexpr std::size_t kLook = std::size_t{1} << 20U;
  check();
  if (bytes > left_ || kStep > left_ - bytes) end("the template makes too many or too long texts and lists");
  left_ -= bytes + kStep;
  const std::ptrdiff_t stack = base_ - static_cast<const char*>(__builtin_frame_address(0));
  if (stack > static_cast<std::ptrdiff_t>(TemplateLimits::kStack))
    end("the template calls itself, or nests values, too deeply");
  unlooked_ += bytes + kStep;
  if (unlooked_ < kLook) return;
  unlooked_ = 0;
  if (thread_time() > until_) end("the template takes too much time");
  if (has_most_of_too_much()) end("the template takes too much memory");
  port::between_steps();
}

}  // namespace coppice::text
