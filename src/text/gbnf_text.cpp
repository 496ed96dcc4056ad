#include "text/gbnf_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace coppice::text {

namespace {

std::string escaped(const std::string& character, std::string_view marks) {
  if (character == "\n") return "\\n";
  if (character == "\r") return "\\r";
  if (character == "\t") return "\\t";
  if (character.size() > 1) return character;
  const auto c = static_cast<unsigned char>(character.front());
  if (c < 0x20 || c == 0x7f || (c == '^' && marks.contains(']'))) return fmt::format("\\u{:04x}", c);
  return marks.contains(character.front()) ? "\\" + character : character;
}

}  // namespace

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> all;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0U) != 0x80 || all.empty()) all.emplace_back();
    all.back() += c;
  }
  return all;
}

std::string char_class(const std::set<std::string>& some, bool but) {
  std::string text = but ? "[^" : "[";
  for (const std::string& character : some) text += escaped(character, R"(\[]-)");
  return text + "]";
}

namespace {

using Letters = std::vector<std::string>;

/// The automaton of texts that may hold a delimiter: a state is a beginning of one, the longest with which the text
/// ends.
class Automaton {
 public:
  explicit Automaton(const std::vector<std::string>& delimiters) {
    for (const std::string& delimiter : delimiters) {
      ends_.insert(characters(delimiter));
      Letters state;
      states_.insert(state);
      for (const std::string& letter : characters(delimiter)) {
        alphabet_.insert(letter);
        state.push_back(letter);
        states_.insert(state);
      }
    }
  }

  const std::set<std::string>& alphabet() const { return alphabet_; }
  const std::set<Letters>& states() const { return states_; }

  Letters next(Letters state, const std::string& letter) const {
    state.push_back(letter);
    while (!states_.contains(state)) state.erase(state.begin());
    return state;
  }
  /// The text ends with a delimiter.
  bool ended(Letters state) const {
    for (; !state.empty(); state.erase(state.begin()))
      if (ends_.contains(state)) return true;
    return false;
  }

 private:
  std::set<Letters> states_, ends_;
  std::set<std::string> alphabet_;
};

}  // namespace

std::string gbnf_literal(std::string_view text) {
  std::string quoted = "\"";
  for (const std::string& character : characters(text)) quoted += escaped(character, R"(\")");
  return quoted + "\"";
}

std::string GbnfRules::reserve() {
  std::string name = fmt::format("r{}", bodies_.size());
  bodies_[name] = "";
  return name;
}

std::string GbnfRules::add(const std::string& body) {
  std::string& name = names_[body];
  if (name.empty()) {
    name = reserve();
    bodies_[name] = body;
  }
  return name;
}

std::string GbnfRules::token(const SpecialNames::Match& mark) {
  std::string& name = names_[fmt::format("token {}", mark.special.token)];
  if (name.empty()) {
    name = reserve();
    bodies_[name] = "[{]";
    tokens_[name] = mark.special.token;
  }
  return name;
}

/// Empty: without `spelled`, there is no mark in the text.
std::string GbnfRules::marked(std::string_view text, bool spelled) {
  std::string row;
  const auto add = [&](const std::string& part) { row += (row.empty() ? "" : " ") + part; };
  std::size_t at = 0;
  while (const auto mark = marks_.find(text, at)) {
    if (mark->begin > at) add(gbnf_literal(text.substr(at, mark->begin - at)));
    const std::string rule = token(*mark);
    add(spelled ? GbnfRules::add(
                      fmt::format("{} | {}", gbnf_literal(text.substr(mark->begin, mark->end - mark->begin)), rule))
                : rule);
    at = mark->end;
  }
  if (at == 0 && !spelled) return "";
  if (at < text.size() || row.empty()) add(gbnf_literal(text.substr(at)));
  return row;
}

std::string GbnfRules::literal(std::string_view text) {
  return marked(text, true);
}

std::string GbnfRules::until(const std::vector<std::string>& delimiters, bool closed, const std::string& not_first,
                             std::size_t least) {
  std::string key = fmt::format("{} {} {}", closed ? "with" : "before", gbnf_literal(not_first), least);
  for (const std::string& delimiter : delimiters) key += " " + gbnf_literal(delimiter);
  if (const auto known = names_.find(key); known != names_.end()) return known->second;

  const Automaton automaton(delimiters);
  const std::size_t bare_least = least;
  if (closed && least > 0) {  // the last letter of a delimiter comes no earlier
    std::size_t longest = 0;
    for (const std::string& delimiter : delimiters) longest = std::max(longest, characters(delimiter).size());
    least += longest - 1;
  }
  // By how many of the least characters have come.
  std::vector<std::map<Letters, std::string>> rules(least + 1);
  for (auto& some : rules)
    for (const Letters& state : automaton.states())
      if (!automaton.ended(state)) some[state] = reserve();
  std::string marks;
  for (const std::string& delimiter : delimiters)
    if (const std::string mark = closed ? marked(delimiter, false) : ""; !mark.empty())
      marks += (marks.empty() ? "" : " | ") + mark;
  // What goes on from a state with the letters but for `skipped`, which is led elsewhere.
  const auto body = [&](std::size_t n, const Letters& state, const std::string& skipped, const std::string& elsewhere) {
    const auto& next = rules[std::min(n + 1, least)];
    std::string text = closed || n < least ? "" : "\"\"";
    const auto or_else = [&](const std::string& more) { text += (text.empty() ? "" : " | ") + more; };
    std::map<Letters, std::set<std::string>> moves;
    std::set<std::string> others = automaton.alphabet(), ending;
    for (const std::string& letter : automaton.alphabet()) {
      if (letter == skipped) continue;
      const Letters to = automaton.next(state, letter);
      automaton.ended(to) ? ending.insert(letter) : moves[to].insert(letter);
    }
    others.insert(skipped);
    others.erase("");
    if (closed && n == least && !ending.empty()) or_else(char_class(ending, false));
    for (const auto& [to, letters] : moves) or_else(char_class(letters, false) + " " + next.at(to));
    or_else(char_class(others, true) + " " + next.at({}));
    if (!elsewhere.empty()) or_else(gbnf_literal(skipped) + " " + elsewhere);
    if (!marks.empty() && n >= bare_least) or_else(marks);
    return text;
  };
  for (std::size_t n = 0; n <= least; ++n)
    for (const auto& [state, rule] : rules[n]) bodies_[rule] = body(n, state, "", "");
  std::string first = rules[0].at({});
  // A chain of rules along `not_first`, the last of which leaves its last letter out.
  const Letters shunned = characters(not_first);
  for (std::size_t i = shunned.size(); i-- > 0;) {
    Letters state;
    for (std::size_t k = 0; k < i; ++k) state = automaton.next(state, shunned[k]);
    const std::string elsewhere = i + 1 == shunned.size() ? "" : first;
    first = reserve();
    bodies_[first] = body(std::min(i, least), state, shunned[i], elsewhere);
  }
  names_[key] = first;
  return first;
}

std::string GbnfRules::text(const std::string& root) const {
  std::string all = fmt::format("root ::= {}\n", root);
  for (const auto& [name, body] : bodies_) all += fmt::format("{} ::= {}\n", name, body.empty() ? "\"\"" : body);
  return all;
}

}  // namespace coppice::text
