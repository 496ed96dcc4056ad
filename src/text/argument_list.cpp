#include "text/argument_list.h"

#include <chat-peg-parser.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace coppice::text {

namespace {

using Tags = common_chat_peg_builder;
using Id = ParserView::Id;

/// The arguments of a choice between some; empty: it is none.
std::vector<Id> choice_of_arguments(const ParserView& view, Id id) {
  const auto* choice = view.as<common_peg_choice_parser>(view.bare(id, Tags::TOOL_ARG));
  if (choice == nullptr) return {};
  // Calls of tools with one argument each are no arguments.
  const bool single = std::ranges::all_of(choice->children, [&](Id one) {
    return view.outermost(one, Tags::TOOL_ARG).size() == 1 && view.outermost(one, Tags::TOOL_NAME).empty();
  });
  return single ? choice->children : std::vector<Id>();
}

/// Sets of up to this many arguments come in any order: 2^n rules.
constexpr std::size_t kMostInAnyOrder = 5;

class ListWriter {
 public:
  ListWriter(const ArgumentTexts& texts, GbnfRules& rules) : texts_(texts), rules_(rules) {}

  std::string rule() {
    const std::size_t n = texts_.items.size();
    return n <= kMostInAnyOrder ? any_order((1U << n) - 1, texts_.between_only) : in_order();
  }

 private:
  /// `left`: those that may still come, by bit. `first`: one must, and nothing stands before it.
  std::string any_order(unsigned left, bool first) {
    std::string& name = names_[{left, first}];
    if (!name.empty()) return name;
    std::string body;
    bool may_end = !first;
    for (std::size_t i = 0; i < texts_.items.size(); ++i) {
      if ((left >> i & 1U) == 0) continue;
      const unsigned behind = left & ~(1U << i);
      body += (body.empty() ? "" : " | ") + with(i, first, behind == 0 ? "" : any_order(behind, false));
      may_end &= !texts_.items[i].required;
    }
    if (may_end) body = "\"\" | " + body;
    return names_[{left, first}] = rules_.add(body);
  }

  /// A rule for each: it comes and then the next ones, or only these. From the last one on.
  std::string in_order() {
    std::string next, next_first;  // where none has come; empty: there is no such list
    bool last = true;
    for (std::size_t i = texts_.items.size(); i-- > 0; last = false) {
      const bool may_lack = !texts_.items[i].required;
      std::string body = with(i, false, next), first = with(i, true, next);
      if (may_lack) body = (last ? "\"\"" : next) + " | " + body;
      if (may_lack && !next_first.empty()) first = next_first + " | " + first;
      next = rules_.add(body);
      if (texts_.between_only) next_first = rules_.add(first);
    }
    return texts_.between_only ? next_first : next;
  }

  std::string with(std::size_t i, bool first, const std::string& then) const {
    std::string one;
    const auto add = [&](const std::string& text) { one += text.empty() ? "" : (one.empty() ? "" : " ") + text; };
    if (!first) add(texts_.before);
    add(texts_.items[i].text);
    add(texts_.behind);
    add(then);
    return one;
  }

  const ArgumentTexts& texts_;
  GbnfRules& rules_;
  std::map<std::pair<unsigned, bool>, std::string> names_;
};

}  // namespace

ArgumentList repeated(const ParserView& view, Id id) {
  const auto* repetition = view.as<common_peg_repetition_parser>(id);
  if (repetition == nullptr || repetition->min_count != 0 || repetition->max_count >= 0) return {};
  ArgumentList list{.items = choice_of_arguments(view, repetition->child)};
  if (!list.items.empty()) return list;
  const auto* row = view.as<common_peg_sequence_parser>(view.bare(repetition->child, Tags::TOOL_ARG));
  if (row == nullptr) return {};
  for (const Id part : row->children) {
    if (std::vector<Id> items = choice_of_arguments(view, part); !items.empty()) {
      if (!list.items.empty()) return {};
      list.items = std::move(items);
    } else {
      (list.items.empty() ? list.before : list.behind).push_back(part);
    }
  }
  return list.items.empty() ? ArgumentList() : list;
}

ArgumentList first_and_rest(const ParserView& view, Id first, Id rest) {
  if (choice_of_arguments(view, first).empty()) return {};
  ArgumentList list = repeated(view, rest);
  list.between_only = true;
  return list;
}

std::string arguments_rule(const ArgumentTexts& texts, GbnfRules& rules) {
  return texts.items.empty() ? "" : ListWriter(texts, rules).rule();
}

}  // namespace coppice::text
