#include "text/chat_history.h"

#include <chat.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "port/turn.h"

namespace coppice::text {

namespace {

constexpr std::size_t kStrictId = 9;

std::string quoted(const std::string& text) {
  return common_json(text).dump();
}

/// FNV-1a, then the finish of SplitMix64: ids differ in few bits.
std::uint64_t hash_of(std::string_view text, std::uint64_t attempt) {
  std::uint64_t hash = 0xcbf29ce484222325ULL + attempt;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31U);
}

/// Letters and digits: 53 bits' worth.
std::string strict_id(std::string_view id, std::uint64_t attempt = 0) {
  constexpr std::string_view kSigns = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::uint64_t hash = hash_of(id, attempt);
  std::string result(kStrictId, '0');
  for (char& sign : result) {
    sign = kSigns[hash % kSigns.size()];
    hash /= kSigns.size();
  }
  return result;
}

bool is_strict(std::string_view id) {
  return id.size() == kStrictId &&
         std::ranges::all_of(id, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; });
}

/// From a conversation's ids to those that the template takes.
class StrictIds {
 public:
  const std::string& of(const std::string& id) {
    const auto known = ids_.find(id);
    if (known != ids_.end()) return known->second;
    std::string strict = is_strict(id) ? id : strict_id(id);
    for (std::uint64_t attempt = 1; !taken_.insert(strict).second; ++attempt) strict = strict_id(id, attempt);
    return ids_.emplace(id, std::move(strict)).first->second;
  }

  /// Of a call without an id, which the next result without one answers.
  const std::string& of_nameless(std::size_t nth) {
    open_.push_back(of(fmt::format("the call {}", nth)));
    return open_.back();
  }
  std::string of_nameless_result() {
    if (open_.empty()) return of("a result");
    std::string id = std::move(open_.front());
    open_.pop_front();
    return id;
  }

 private:
  std::map<std::string, std::string> ids_;
  std::set<std::string> taken_;
  std::deque<std::string> open_;
};

/// Text between tags that say whose it is. `nth`: of several calls of a turn, from 1; 0: the only one.
std::string result_text(const std::string& name, std::size_t nth, const std::string& content) {
  std::string tag = "<tool_response";
  if (nth > 0) tag += fmt::format(" call=\"{}\"", nth);
  if (!name.empty()) tag += fmt::format(" name=\"{}\"", name);
  return fmt::format("{}>\n{}\n</tool_response>", tag, content);
}

/// Is it JSON, perhaps, of more levels than anybody needs? A stack holds some ten thousand.
bool is_deep(std::string_view text) {
  constexpr int kMost = 256;
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || (text[begin] != '[' && text[begin] != '{')) return false;
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (depth > kMost) return true;
  }
  return false;
}

void add_line(std::string& text, const std::string& more) {
  if (!text.empty()) text += '\n';
  text += more;
}

/// Calls whose arguments are no object become text. `cut`: their names, by id.
void write_out_cut_calls(ChatMessage& message, std::map<std::string, std::string>& cut) {
  for (const ChatCall& call : message.calls) {
    if (!call.cut) continue;
    add_line(message.content, fmt::format("{{\"name\": {}, \"arguments\": {}", quoted(call.name), call.arguments));
    cut[call.id] = call.name;
    message.quoted.push_back(call.arguments);
  }
  std::erase_if(message.calls, [](const ChatCall& call) { return call.cut; });
}

}  // namespace

std::vector<ChatMessage> fitted(std::span<const ChatMessage> messages, const HistoryNeeds& needs) {
  std::vector<ChatMessage> all;
  std::map<std::string, std::string> cut;
  StrictIds ids;
  std::size_t calls = 0;
  bool joins = false;  // the last message holds results of calls that are text; the user's next words go with them
  for (const ChatMessage& message : messages) {
    port::between_steps();
    ChatMessage own = message;
    if (needs.objects) write_out_cut_calls(own, cut);
    const auto name = own.role == "tool" ? cut.find(own.call_id) : cut.end();
    if (name != cut.end()) own = {.role = "user", .content = result_text(name->second, 0, message.content)};
    if (needs.reads_results && own.role == "tool" && is_deep(own.content)) own.content.insert(0, "Text: ");
    if (joins && own.role == "user") {
      add_line(all.back().content, own.content);
      joins = name != cut.end();
      continue;
    }
    joins = name != cut.end();
    if (needs.ids == CallIds::kNine) {
      for (ChatCall& call : own.calls) {
        ++calls;
        call.id = call.id.empty() ? ids.of_nameless(calls) : ids.of(call.id);
      }
      if (own.role == "tool") own.call_id = own.call_id.empty() ? ids.of_nameless_result() : ids.of(own.call_id);
    }
    all.push_back(std::move(own));
  }
  return all;
}

namespace {

std::string call_text(const ChatCall& call) {
  return fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>", quoted(call.name),
                     call.arguments);
}

std::string tools_text(std::span<const ToolSpec> tools) {
  std::string text =
      "You can call functions. To call one, write its name and its arguments as JSON between these tags:\n"
      "<tool_call>\n{\"name\": NAME, \"arguments\": ARGUMENTS}\n</tool_call>\n"
      "The functions, each with a JSON schema of its arguments:";
  for (const ToolSpec& tool : tools) {
    text += fmt::format("\n{{\"name\": {}, \"description\": {}, \"parameters\": {}}}", quoted(tool.name),
                        quoted(tool.description), tool.parameters);
  }
  return text;
}

/// The call that a result answers: by its id, else the turn's next one.
struct OpenCalls {
  std::vector<ChatCall> calls;
  std::size_t next = 0;

  std::string answer(const ChatMessage& result) {
    const std::size_t at = next++;
    const auto named = std::ranges::find(calls, result.call_id, &ChatCall::id);
    const auto nth =
        result.call_id.empty() || named == calls.end() ? at : static_cast<std::size_t>(named - calls.begin());
    const std::string name = nth < calls.size() ? calls[nth].name : "";
    return result_text(name, calls.size() > 1 ? nth + 1 : 0, result.content);
  }
};

}  // namespace

std::vector<ChatMessage> in_plain_form(std::span<const ChatMessage> messages, std::span<const ToolSpec> tools) {
  std::vector<ChatMessage> plain;
  OpenCalls turn;
  bool results = false;  // the last message holds some
  if (!tools.empty() && messages.front().role != "system")
    plain.push_back({.role = "system", .content = tools_text(tools)});
  for (const ChatMessage& message : messages) {
    if (message.role == "tool") {
      if (!results) plain.push_back({.role = "user"});
      add_line(plain.back().content, turn.answer(message));
      results = true;
      continue;
    }
    results = false;
    if (message.role == "assistant") turn = {.calls = message.calls};
    ChatMessage& to = plain.emplace_back(ChatMessage{.role = message.role, .content = message.content});
    if (&message == &messages.back()) to.reasoning = message.reasoning;  // it may be what goes on
    if (!tools.empty() && plain.size() == 1) to.content += (to.content.empty() ? "" : "\n\n") + tools_text(tools);
    to.quoted = message.quoted;
    for (const ChatCall& call : message.calls) {
      add_line(to.content, call_text(call));
      to.quoted.push_back(call.arguments);
    }
  }
  return plain;
}

std::vector<ChatMessage> with_one_call_a_turn(std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> all;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].calls.size() < 2) {
      all.push_back(std::move(messages[i]));
      continue;
    }
    const std::vector<ChatCall> calls = std::exchange(messages[i].calls, {});
    std::deque<ChatMessage> results;
    ChatMessage turn = std::move(messages[i]);
    while (i + 1 < messages.size() && messages[i + 1].role == "tool") results.push_back(std::move(messages[++i]));
    for (const ChatCall& call : calls) {
      turn.calls = {call};
      all.push_back(std::exchange(turn, {.role = "assistant"}));
      const auto its = std::ranges::find(results, call.id, &ChatMessage::call_id);
      if (its == results.end()) continue;
      all.push_back(std::move(*its));
      results.erase(its);
    }
    std::ranges::move(results, std::back_inserter(all));
  }
  return all;
}

std::vector<ChatMessage> with_system_in_place(std::vector<ChatMessage> messages, SystemPlaces places) {
  const auto is_system = [](const ChatMessage& m) { return m.role == "system" || m.role == "developer"; };
  std::vector<ChatMessage> all;
  bool leads = true;
  for (ChatMessage& message : messages) {
    leads = leads && is_system(message);
    if (leads && !all.empty() && !places.several) {
      if (!all.back().content.empty() && !message.content.empty()) all.back().content += "\n\n";
      all.back().content += message.content;
      continue;
    }
    if (is_system(message) && !leads && !places.later)
      message = {.role = "user", .content = fmt::format("<system>\n{}\n</system>", message.content)};
    all.push_back(std::move(message));
  }
  return all;
}

std::vector<ChatMessage> in_turns(std::vector<ChatMessage> messages) {
  std::vector<ChatMessage> all;
  for (ChatMessage& message : messages) {
    const std::string before = all.empty() ? "" : all.back().role;
    const bool speaks = message.role == "user" || (message.role == "assistant" && message.calls.empty());
    if (speaks && message.role == before && all.back().calls.empty()) {
      all.back().content += "\n\n" + message.content;
      all.back().reasoning += message.reasoning;
      all.back().quoted.insert(all.back().quoted.end(), message.quoted.begin(), message.quoted.end());
      continue;
    }
    if (message.role == "user" && before == "tool") all.push_back({.role = "assistant", .content = "OK."});
    all.push_back(std::move(message));
  }
  return all;
}

std::string call_id(CallIds form, const std::string& own, const std::string& name, std::size_t nth) {
  switch (form) {
    case CallIds::kNine:
      return strict_id(own);
    case CallIds::kFunction:
      return fmt::format("functions.{}:{}", name, nth);
    case CallIds::kAny:
      break;
  }
  return own;
}

}  // namespace coppice::text
