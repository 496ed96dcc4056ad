#include "server/jobs/preparation.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "check/assert.h"
#include "grammar/work.h"
#include "kv/text.h"
#include "server/base/request_error.h"
#include "server/jobs/prompt_text.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

using Tokens = std::vector<kv::Token>;

std::shared_ptr<const sampling::SharedParams> shared_params(sampling::SamplingParams params, std::int32_t n_vocab) {
  try {
    return std::make_shared<const sampling::SharedParams>(std::move(params), n_vocab);
  } catch (const sampling::ParamError& e) {
    throw RequestError(400, e.what(), e.field(), "invalid_value");
  }
}

/// A prompt whose end alone is wanted may be so many contexts long.
constexpr int kCutContexts = 16;

std::size_t bytes_of(const Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return text->size();
  if (const auto* chat = std::get_if<text::MarkedText>(&prompt)) return chat->text.size();
  if (const auto* tokens = std::get_if<Tokens>(&prompt)) return tokens->size() * sizeof(kv::Token);
  std::size_t bytes = 0;
  for (const auto& part : std::get<PromptParts>(prompt))
    bytes += part.index() == 0 ? std::get<std::string>(part).size() : sizeof(kv::Token);
  return bytes;
}

/// Most take less. Those that take more wait on another thread, for each other only.
constexpr double kQuickCompileSeconds = 0.1;

/// Null: none, which the constraint allows. Throws WorkError if `seconds` of CPU time were not enough, and more are
/// allowed.
std::shared_ptr<const grammar::Grammar> compiled(const Model& model, const grammar::Constraint& constraint,
                                                 double seconds) {
  try {
    return model.compile(constraint.source, seconds);
  } catch (const grammar::WorkError& e) {
    if (seconds < grammar::kMaxCompileSeconds) throw;
    if (constraint.optional) return nullptr;
    throw RequestError::bad_field(constraint.field, e.what(), "invalid_grammar");
  } catch (const grammar::GrammarError& e) {
    if (constraint.optional) return nullptr;
    throw RequestError::bad_field(constraint.field, e.what(), "invalid_grammar");
  }
}

/// What holds calls.
grammar::Source source_of(text::ToolPrompt& chat) {
  grammar::Source source{.kind = grammar::Kind::kGbnf,
                         .text = std::move(chat.grammar),
                         .schemas = std::move(chat.schemas),
                         .tokens = std::move(chat.tokens),
                         .spaced = chat.spaced};
  for (auto& [rule, text] : chat.bare)
    source.bare[rule] = {
        .schema = std::move(text.schema), .pattern = std::move(text.pattern), .ends = std::move(text.ends)};
  return source;
}

/// The answer is of the form, or calls: the grammar of these begins with the text by which the model marks one.
/// REQUIRES: the form is JSON.
void put_beside_calls(text::ToolPrompt& chat, grammar::Constraint& form) {
  if (chat.grammar.empty())
    throw RequestError::unsupported(
        form.field,
        "not supported together with tools that may be called: this model doesn't mark where a call begins");
  const std::string root = "root ::=";
  grammar::Source both = source_of(chat);
  std::string calls = "\n" + both.text;
  const std::size_t at = calls.find("\n" + root);
  if (at != std::string::npos) calls.replace(at + 1, root.size(), "the-calls ::=");
  both.text = root + " the-form | the-calls\nthe-form ::= [{]" + calls;
  both.schemas["the-form"] = std::move(form.source.text);
  both.spaced |= form.source.spaced;
  form.source = std::move(both);
}

/// The answer is what the chat's grammar says, in which the form stands.
void put_among_calls(text::ToolPrompt& chat, grammar::Constraint& form) {
  grammar::Source both = source_of(chat);
  both.forms = {{text::FormFrame::kForm, {form.source.kind, std::move(form.source.text), form.source.spaced}}};
  form.source = std::move(both);
  form.begun = std::move(chat.begun);
}

/// The answer's text is of the form.
void put_into(text::FormFrame frame, grammar::Source& form) {
  form = {.kind = grammar::Kind::kGbnf,
          .text = std::move(frame.grammar),
          .tokens = std::move(frame.tokens),
          .forms = {{text::FormFrame::kForm, {form.kind, std::move(form.text), form.spaced}}}};
}

void add_pictures(const Prompt& prompt, PromptPictures& to) {
  const auto* parts = std::get_if<PromptParts>(&prompt);
  if (parts == nullptr) return;
  for (const auto& part : *parts)
    if (const auto* file = std::get_if<PromptPictures::File>(&part)) to.add(*file);
}

/// The chat up to a mark. Something stands behind system messages: some templates put them into the next one.
std::vector<Message> up_to(const PinMark& mark, std::vector<Message> messages) {
  messages.resize(std::min(mark.messages, messages.size()));
  if (!messages.empty()) {
    Message& last = messages.back();
    last.content.resize(std::min(mark.parts, last.content.size()));
    last.calls.resize(std::min(mark.calls, last.calls.size()));
  }
  if (messages.empty() || messages.back().role == "system") messages.push_back({.role = "user", .content = {{"0"}}});
  return messages;
}

}  // namespace

Preparation::Preparation(Model& model, GenerationRequest request)
    : model_(model), asked_(std::move(request)), pictures_(model.pictures(), asked_.cache_salt, asked_.pin_payer) {
  if (asked_.messages.empty() && asked_.prompts.empty())
    throw RequestError::bad_field(asked_.input_field, "must not be empty");
  if (asked_.messages.empty() && asked_.thought_budget.value_or(-1) >= 0 && !asked_.thought_budget_field.empty())
    throw RequestError::unsupported(asked_.thought_budget_field,
                                    "bounds the thoughts of chats; a prompt's template is not known");
  pictures_.add(asked_.messages);
  for (const Prompt& prompt : asked_.prompts) add_pictures(prompt, pictures_);
  if (asked_.keep_last && !pictures_.empty())
    throw RequestError::unsupported("truncate_prompt_tokens", "not supported together with images");
  add_text_params();
  if (std::ranges::find(asked_.pins, false, &PinMark::whole) != asked_.pins.end()) marked_ = asked_.messages;
  if (asked_.beginning) {
    share_sampling();
    return;
  }
  if (!asked_.messages.empty()) render_chat();
  if (!asked_.grammar) {
    share_sampling();
  } else if (auto known = model_.compiled(asked_.grammar->source)) {
    follow(std::move(known));
  } else {
    asked_.grammar->source.payer = asked_.pin_payer;
  }
}

void Preparation::compile_grammar(bool quickly) try {
  follow(compiled(model_, *asked_.grammar, quickly ? kQuickCompileSeconds : grammar::kMaxCompileSeconds));
} catch (const grammar::WorkError&) {  // only if quickly: else it is the client's error
}

void Preparation::follow(std::shared_ptr<const grammar::Grammar> grammar) {
  if (grammar)
    asked_.sampling.grammar = {.grammar = std::move(grammar),
                               .after = std::move(asked_.grammar->after),
                               .skipped = std::move(asked_.grammar->skipped),
                               .opens = asked_.grammar->opens,
                               .begun = std::move(asked_.grammar->begun),
                               .payer = asked_.pin_payer};
  asked_.grammar.reset();
  share_sampling();
}

void Preparation::share_sampling() {
  prepared_.sampling = shared_params(std::move(asked_.sampling), model_.facts().n_vocab);
}

/// The texts that dialects leave in the request: only the model knows their tokens.
void Preparation::add_text_params() {
  const auto tokens_of_word = [this](const std::string& text, bool names = true) {
    return model_.tokenize(text, false, names, sampling::kMaxBadWordTokens);
  };
  sampling::SamplingParams& params = asked_.sampling;
  for (const auto& [text, bias] : asked_.text_bias) {
    for (const kv::Token token : tokens_of_word(text, false)) {
      float& sum = params.logit_bias[token];
      const bool never = sum == sampling::kNever || bias == sampling::kNever;
      sum = never ? sampling::kNever : std::clamp(sum + bias, -100.0F, 100.0F);
    }
  }
  // As vLLM: a word is barred at the beginning of a text, and behind a space.
  for (const std::string& word : asked_.bad_words) {
    const std::string_view bare = std::string_view(word).substr(std::min(word.find_first_not_of(' '), word.size()));
    Tokens first = tokens_of_word(std::string(bare)), later = tokens_of_word(" " + std::string(bare));
    if (later != first) params.bad_words.push_back(std::move(later));
    params.bad_words.push_back(std::move(first));
  }
}

/// The grammar holds for what follows the reasoning, which the model may leave out. Where no single token begins it,
/// there is none: what comes first would else be text that the grammar doesn't hold.
void Preparation::begin_behind(const text::ThoughtTags& thoughts, grammar::Constraint& constraint) const {
  if (thoughts.end.empty()) return;
  if (!thoughts.open) {
    const Tokens begin = model_.tokenize(thoughts.begin, false, true, 2);
    if (begin.size() != 1) return;
    constraint.opens = begin.front();
  }
  constraint.after = thoughts.end;
}

text::ToolPrompt Preparation::render(std::vector<Message> messages, const Tools& tools, text::TurnEnd end) const {
  return chat_text(model_, std::move(messages), end, tools, asked_.input_field);
}

/// Two chats that go on differently have it in common: so templates that say more of a last message, or nothing of a
/// system message alone, don't matter, nor does what the tokenizer makes of the border.
kv::Text Preparation::beginning() const {
  const Message& last = asked_.messages.back();
  const char* next = !last.calls.empty() ? "tool" : last.role == "user" ? "assistant" : "user";
  const auto with = [&](const char* text) {
    std::vector<Message> messages = asked_.messages;
    messages.push_back({.role = next, .content = {{text}}});
    return symbols_of(render(std::move(messages), asked_.tools, text::TurnEnd::kClosed));
  };
  kv::Text symbols = with("0");
  symbols.truncate(static_cast<std::size_t>(kv::common_prefix(symbols, with("x"))));
  return symbols;
}

/// Where the marks are in the prompt: as far as it is the same as the prompt of the chat up to there.
std::vector<engine::PinWish> Preparation::pin_wishes(kv::TextView prompt) const {
  std::vector<engine::PinWish> wishes;
  for (const PinMark& mark : asked_.pins) {
    engine::PinWish& wish = wishes.emplace_back(mark.wish);
    wish.tokens = static_cast<std::int32_t>(prompt.size());
    if (mark.whole) continue;
    Tools tools = asked_.tools;
    tools.specs.resize(std::min(mark.tools, tools.specs.size()));
    tools.must_call &= !tools.specs.empty();
    wish.tokens = 0;
    try {
      const text::ToolPrompt chat = render(up_to(mark, marked_), tools, text::TurnEnd::kClosed);
      wish.tokens = kv::common_prefix(symbols_of(chat), prompt);
    } catch (const RequestError&) {  // a template that refuses such a part of the chat: it stays unpinned
    }
  }
  std::ranges::sort(wishes, {}, &engine::PinWish::tokens);
  return wishes;
}

/// A template that doesn't think has nothing to bound.
void Preparation::bound_thoughts(const text::ThoughtBounds& thoughts) {
  const std::int32_t budget = asked_.thought_budget.value_or(-1);
  if (budget < 0 || thoughts.end.empty()) return;
  const auto tokens = [&](const std::string& text) { return model_.tokenize(text, false, true, text.size() + 1); };
  asked_.sampling.thoughts = {.budget = budget,
                              .begin = thoughts.begin,
                              .end = thoughts.end,
                              .open = thoughts.open,
                              .close = tokens(thoughts.close),
                              .last = tokens(thoughts.last)};
  for (const std::string& way : thoughts.ways) asked_.sampling.thoughts.ways.push_back(tokens(way));
}

/// What the template makes of a chat decides on sampling, too: stop strings, the grammar of calls, where a grammar
/// begins.
void Preparation::render_chat() {
  asked_.tools.forms = asked_.grammar.has_value();
  text::ToolPrompt chat =
      chat_text(model_, std::move(asked_.messages), asked_.turn_end, asked_.tools, asked_.input_field);
  asked_.messages.clear();
  prepared_.call_ids = chat.call_ids;
  prepared_.calls_before = chat.calls_before;
  asked_.prompts.emplace_back(text::MarkedText{std::move(chat.prompt), std::move(chat.plain)});
  if (!asked_.tools.keep_thoughts || !chat.grammar.empty()) prepared_.format = std::move(chat.format);
  asked_.sampling.show_special |= prepared_.format != nullptr;  // calls are often marked by special tokens
  for (std::string& stop : chat.stops) asked_.sampling.stop.push_back(std::move(stop));
  bound_thoughts(chat.bounded);
  if (asked_.grammar) {
    if (chat.holds_form) {
      put_among_calls(chat, *asked_.grammar);
      return begin_behind(chat.ahead, *asked_.grammar);
    }
    if (!asked_.tools.specs.empty() && asked_.tools.may_call) put_beside_calls(chat, *asked_.grammar);
    if (!chat.frame.grammar.empty()) return put_into(std::move(chat.frame), asked_.grammar->source);
    return begin_behind(chat.thoughts, *asked_.grammar);
  }
  if (chat.grammar.empty()) return;
  asked_.grammar = grammar::Constraint{.source = source_of(chat),
                                       .after = std::move(chat.from),
                                       .skipped = {chat.skipped.begin, chat.skipped.end, chat.skipped.open},
                                       .begun = std::move(chat.begun),
                                       .field = "tools",
                                       .optional = !asked_.tools.must_call};
  begin_behind(chat.ahead, *asked_.grammar);
}

bool Preparation::step() {
  COPPICE_ASSERT(!wants_grammar());
  if (!pictures_.looked()) {
    pictures_.look();
    return false;
  }
  if (asked_.beginning) add(beginning());
  for (std::size_t bytes = 0; prepared_.requests.size() < asked_.prompts.size();) {
    if (bytes >= kStepBytes) return false;
    const Prompt& prompt = asked_.prompts[prepared_.requests.size()];
    const auto* text = std::get_if<std::string>(&prompt);
    bytes += bytes_of(prompt);
    if (const auto* chat = std::get_if<text::MarkedText>(&prompt)) pictures_.check_all_in(chat->text);
    add(symbols_of(prompt));
    const bool whole = text && !asked_.keep_last;
    if (!asked_.echo) continue;
    engine::Request& request = prepared_.requests.back();
    request.held_bytes +=
        prepared_.echoes
            .emplace_back(whole ? *text : text_of(unfinished_.empty() ? request.prompt.view() : unfinished_.back()))
            .size();
  }
  pictures_.take_kept();  // they don't wait until the encoder is done with others
  return true;
}

Prepared Preparation::take() {
  if (unfinished_.size() == 1) prepared_.pictures = pictures_.places(unfinished_.front());
  prepared_.terms = static_cast<GenerationTerms&&>(asked_);
  return std::move(prepared_);
}

void Preparation::add_rows(std::span<engine::Request> requests) const {
  COPPICE_ASSERT(!wants_rows());
  for (std::size_t i = 0; i < unfinished_.size(); ++i) requests[i].prompt = pictures_.prompt(unfinished_[i]);
}

/// Names of special tokens count as these where no mark says otherwise: whoever brings a chat template of their own
/// writes them into the prompt (llama-server and vLLM do the same).
Tokens Preparation::tokens_of(const text::MarkedView& text, bool first) const {
  const auto tokenize = [&](std::size_t most) {
    return first && asked_.add_special ? model_.prompt_tokens(text, asked_.cache_salt, asked_.pin_payer, most)
                                       : model_.tokenize(text, false, true, most);
  };
  return text_tokens(model_.facts(), text.text, asked_.input_field, tokenize, asked_.keep_last ? kCutContexts : 1);
}

kv::Text Preparation::symbols_of(const Prompt& prompt) const {
  if (const auto* text = std::get_if<std::string>(&prompt)) return tokens_of(*text);
  if (const auto* chat = std::get_if<text::MarkedText>(&prompt)) return symbols_of(text::MarkedView(*chat));
  if (const auto* parts = std::get_if<PromptParts>(&prompt)) return symbols_of(*parts);
  return std::get<Tokens>(prompt);
}

kv::Text Preparation::symbols_of(const text::MarkedView& text) const {
  if (pictures_.empty()) return tokens_of(text);
  const auto tokenize = [&](const text::MarkedView& part, bool first, std::size_t most) {
    return first && asked_.add_special ? model_.prompt_tokens(part, asked_.cache_salt, asked_.pin_payer, most)
                                       : model_.tokenize(part, false, true, most);
  };
  return prompt_symbols(model_.facts(), text, pictures_, asked_.input_field, tokenize);
}

kv::Text Preparation::symbols_of(const text::ToolPrompt& chat) const {
  return symbols_of(text::MarkedView(chat.prompt, chat.plain));
}

kv::Text Preparation::symbols_of(const PromptParts& parts) const {
  kv::Text symbols;
  for (const auto& part : parts) {
    if (const auto* token = std::get_if<kv::Token>(&part)) {
      symbols.append(std::span(token, 1));
    } else if (const auto* text = std::get_if<std::string>(&part)) {
      symbols.append(tokens_of(*text, /*first=*/&part == &parts.front()));
    } else {
      append(pictures_.picture(std::get<PromptPictures::File>(part)), symbols);
    }
    if (symbols.size() > kCountedContexts * static_cast<std::size_t>(model_.facts().context_length)) break;
  }
  return symbols;
}

std::string Preparation::text_of(kv::TextView symbols) const {
  std::string text;
  for (std::int32_t at = 0; at < std::ssize(symbols.bits());) {
    const std::int32_t medium = symbols.medium_from(at);
    text += model_.detokenize(
        symbols.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(medium - at)).tokens(), true);
    at = symbols.token_from(medium);
    if (at > medium) text += kPublicMarker;
  }
  return text::to_utf8(text);
}

void Preparation::add(kv::Text symbols) {
  Tokens tokens = symbols.view().tokens();
  if (asked_.keep_last) {
    // All but one of the context's tokens, where the request doesn't say how many.
    const auto most =
        static_cast<std::size_t>(*asked_.keep_last > 0 ? *asked_.keep_last : model_.facts().context_length - 1);
    if (tokens.size() > most) {
      tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(most));
      symbols = tokens;
    }
  }
  check_prompt(model_.facts(), symbols, asked_.input_field, /*answers=*/asked_.max_tokens != 0);
  engine::Request& request = prepared_.requests.emplace_back();
  request.id = model_.next_id();
  request.max_tokens = asked_.max_tokens;
  request.ns = {.salt = asked_.cache_salt};
  request.priority = asked_.priority;
  request.cache_report = asked_.cache_report;
  request.match_cache = asked_.match_cache;
  request.progress = asked_.stream && (asked_.telemetry.progress || asked_.telemetry.timings);
  request.pins = pin_wishes(symbols);
  request.pin_payer = asked_.pin_payer;
  request.held_bytes = std::exchange(asked_.own_bytes, 0);  // once for all prompts
  if (asked_.prompt_text) request.held_bytes += prepared_.prompt_texts.emplace_back(text_of(symbols)).size();
  const int n_top = std::max(asked_.prompt_logprobs, asked_.echo ? prepared_.sampling->params.logprobs : -1);
  if (n_top >= 0) request.scoring = {.scorer = model_.scorer(), .from = asked_.logprobs_from, .n_top = n_top};
  if (asked_.embed) {
    const ModelFacts& facts = model_.facts();
    request.pooling = {facts.pooling, std::vector<double>(static_cast<std::size_t>(facts.n_embd))};
  }
  request.samples = model_.make_generations(prepared_.sampling, asked_.n, tokens);
  if (const auto& grammar = prepared_.sampling->params.grammar.grammar)
    request.shared = {.what = grammar, .bytes = grammar->bytes()};
  prepared_.prompt_tokens += static_cast<std::int64_t>(symbols.size());
  if (pictures_.empty()) {
    request.prompt = std::move(tokens);
  } else {
    unfinished_.push_back(std::move(symbols));
  }
}

}  // namespace coppice::server
