#include "text/call_grammar.h"

#include <chat-peg-parser.h>
#include <fmt/format.h>
#include <json.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "text/argument_list.h"
#include "text/bare_strings.h"
#include "text/dict_form.h"
#include "text/held_schema.h"
#include "text/parser_view.h"
#include "text/piece_row.h"

namespace coppice::text {

namespace {

using Tags = common_chat_peg_builder;
using M3 = common_chat_peg_minimax_m3_mapper;
using Id = ParserView::Id;

/// In a mark, where the parser reads anything: attributes, names of receivers.
constexpr const char* kFiller = R"([a-zA-Z0-9_=\"'.: -]{0,32})";
constexpr const char* kString = R"(([^"\\\u0000-\u001f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))*)";
constexpr const char *kAnyJson = "{}", *kAnyObject = R"({"type":"object","additionalProperties":true})";
constexpr int kMostCalls = 8;  ///< of an answer that must call: a small model would repeat one without end
/// What gpt-oss writes before a channel by mistake. The bound of thoughts would not see that these have begun.
constexpr const char* kStray = "<|channel|>commentary";
constexpr int kMostMarks = 24;  ///< letters of one word in a mark

/// Where a part stands: in the call of this tool (-1: in none), in a value of this schema (null: it isn't known).
struct Context {
  int tool = -1;
  const common_json* schema = nullptr;
  bool thoughts = false;
  auto operator<=>(const Context&) const = default;
};

class CallWriter {
 public:
  CallWriter(const common_peg_arena& parser, std::span<const ToolSpec> tools, bool whole, bool parallel,
             const SpecialNames& marks)
      : view_(parser), tools_(tools), whole_(whole), parallel_(parallel), rules_(marks) {
    for (const ToolSpec& tool : tools) held_.emplace_back(tool);
  }

  CallGrammar write(const std::function<std::string(GbnfRules&)>& beside) {
    must_call_ = whole_ && !beside;
    const Id root = view_.arena().root();
    if (!view_.has(root, Tags::TOOL_NAME)) return {};
    std::string text;
    if (whole_) {
      text = piece(root, {}).text;
    } else {
      for (const Id trigger : view_.triggers()) {
        if (!view_.has(trigger, Tags::TOOL_NAME)) continue;
        text += (text.empty() ? "" : " | ") + piece(trigger, {}).text;
      }
    }
    if (text.empty()) return {};
    if (beside) text = fmt::format("({}) | {}", beside(rules_), text);
    // Where values may be Python's, no blank may stand before a list's comma.
    const bool python = std::ranges::any_of(std::vector{"python-value", "python-or-json-value"},
                                            [&](const char* rule) { return view_.arena().has_rule(rule); });
    return {.text = rules_.text(text),
            .schemas = std::move(schemas_),
            .tokens = rules_.tokens(),
            .bare = std::move(strings_).take_rules(),
            .spaced = python};
  }

 private:
  // --- what stands where ---

  /// nullptr: it stands in no tool's call.
  const HeldSchema* held_of(const Context& context) const {
    return context.tool < 0 ? nullptr : &held_[static_cast<std::size_t>(context.tool)];
  }

  bool calls(Id id) { return view_.has(id, Tags::TOOL_NAME); }

  Context narrowed(Id id, Context context) {
    if (context.tool >= 0) return context;
    const auto& names = view_.names(id, Tags::TOOL_NAME);
    if (names.size() != 1) return context;
    for (std::size_t i = 0; i < tools_.size(); ++i) {
      if (tools_[i].name != *names.begin()) continue;
      context.tool = static_cast<int>(i);
      context.schema = held_[i].root();
    }
    return context;
  }

  Piece piece(Id id, const Context& outer) {
    const Context context = narrowed(id, outer);
    return std::visit([&](const auto& part) { return of(id, part, context); }, view_.arena().get(id));
  }

  // --- parts without parts ---

  Piece of(Id, const common_peg_epsilon_parser&, const Context&) { return {}; }
  Piece of(Id, const common_peg_start_parser&, const Context&) { return {}; }
  Piece of(Id, const common_peg_end_parser&, const Context&) { return {}; }
  Piece of(Id, const common_peg_and_parser&, const Context&) { return {.text = {}, .peeks = true}; }
  Piece of(Id, const common_peg_not_parser& part, const Context&) {
    const auto* literal = view_.as<common_peg_literal_parser>(view_.bare(part.child));
    shunned_ = literal != nullptr ? literal->literal : "";
    return {};
  }
  Piece of(Id, const common_peg_any_parser&, const Context&) { return {.text = "[^\\u0000]", .open_first = true}; }
  Piece of(Id, const common_peg_space_parser&, const Context&) {
    return {.text = rules_.add(kSpace), .space_first = true, .space_last = true};
  }
  Piece of(Id, const common_peg_literal_parser& part, const Context&) {
    return {.text = part.literal.empty() ? "" : rules_.literal(part.literal)};
  }
  Piece of(Id, const common_peg_chars_parser& part, const Context&) {
    const int most =
        part.max_count < 0 ? std::max(part.min_count, part.pattern == "[0-9]" ? 2 : kMostMarks) : part.max_count;
    return {.text = fmt::format("{}{{{},{}}}", part.pattern, part.min_count, most)};
  }
  Piece of(Id, const common_peg_string_parser&, const Context&) {
    return {.text = rules_.add(kString), .open_first = true};
  }
  Piece of(Id, const common_peg_until_parser& part, const Context& context) {
    if (!context.thoughts) return {.text = rules_.add(kFiller)};
    return until(part.delimiters, false);
  }
  Piece of(Id, const common_peg_schema_parser&, const Context& context) { return json(context.schema, kAnyJson); }

  Piece until(const std::vector<std::string>& delimiters, bool closed) {
    const std::string not_first = std::exchange(shunned_, {});
    return {.text = rules_.until(delimiters, closed, not_first), .open_first = true};
  }

  // --- shells ---

  Piece of(Id, const common_peg_atomic_parser& part, const Context& context) { return piece(part.child, context); }
  Piece of(Id, const common_peg_ref_parser& part, const Context& context) {
    return piece(view_.arena().get_rule(part.name), context);
  }
  /// The library's own word for what the part's grammar is: nothing, or another rule.
  Piece of(Id, const common_peg_gbnf_parser& part, const Context& context) {
    if (part.grammar.empty()) return {};
    const bool rule = view_.arena().has_rule(part.grammar);
    // "JSON, else a string", of which the library's grammar keeps the string.
    const auto* choice = view_.as<common_peg_choice_parser>(view_.bare(part.child));
    if (const HeldSchema* held = held_of(context); rule && choice != nullptr && held != nullptr &&
                                                   view_.has(part.child, Tags::TOOL_ARG_VALUE) &&
                                                   !held->allows_text(context.schema))
      return piece(choice->children.front(), context);
    return piece(rule ? view_.arena().get_rule(part.grammar) : part.child, context);
  }
  /// Text up to a delimiter, and that.
  Piece of(Id, const common_peg_ac_parser& part, const Context& context) {
    const HeldSchema* held = held_of(context);
    if (context.thoughts || held == nullptr) return until(part.delimiters, true);
    return string_of(*held, context, {.texts = part.delimiters, .closed = true});
  }

  Piece of(Id id, const common_peg_rule_parser& part, const Context& context) {
    const auto [at, is_new] = named_.try_emplace({id, context});
    if (!is_new) return at->second;
    const std::string name = rules_.reserve();
    at->second.text = name;
    Piece body = piece(part.child, context);
    Piece& known = named_[{id, context}];
    rules_.define(name, body.text);
    if (!body.text.empty()) body.text = name;
    return known = body;
  }

  Piece of(Id, const common_peg_tag_parser& part, Context context) {
    if (part.tag == Tags::CONTENT) return {};
    context.thoughts = context.thoughts || part.tag == Tags::REASONING;
    const HeldSchema* held = held_of(context);
    if (part.tag == Tags::TOOL_ID) return id_piece(part.child, context);
    if (part.tag == Tags::TOOL_ARG_VALUE) return json(context.schema, kAnyJson);
    if (part.tag == Tags::TOOL_ARG_STRING_VALUE) return string_value(part.child, context);
    if (part.tag == Tags::TOOL_ARGS && view_.as<common_peg_schema_parser>(view_.bare(part.child)) != nullptr)
      return json(context.schema, kAnyObject);
    if (part.tag == Tags::TOOL_ARGS && held != nullptr && is_dict(part.child)) return dict(*held);
    if (part.tag == Tags::TOOL_ARG && held != nullptr) {
      const auto& names = view_.names(part.child, Tags::TOOL_ARG_NAME);
      // An object's own name comes first of those in it.
      const auto own = view_.outermost(part.child, Tags::TOOL_ARG_NAME);
      const std::string name = names.size() == 1 ? *names.begin()
                               : own.empty()     ? ""
                                                 : *view_.names(own.front(), Tags::TOOL_ARG_NAME).begin();
      context.schema = held->property(context.schema, name);
    }
    if (part.tag == M3::TOOL_ARG_ITEM && held != nullptr) context.schema = held->items(context.schema);
    return piece(part.child, context);
  }

  /// An id that is a number.
  bool is_numbered(Id id) const {
    const auto* tag = view_.as<common_peg_tag_parser>(view_.bare(id, Tags::TOOL_ID));
    const auto* rule = tag == nullptr ? nullptr : view_.as<common_peg_rule_parser>(tag->child);
    return rule != nullptr && rule->name == "json-number";
  }

  /// One that the model makes up. Mistral's templates want nine letters and digits, Solar's ten.
  Piece id_piece(Id id, const Context& context) {
    if (calls(id)) return piece(id, context);
    if (view_.delimiters(id) == std::vector<std::string>{"<|tool_call:name|>"}) return {.text = "[a-z0-9]{10}"};
    return {.text = "[a-zA-Z0-9]{9}"};
  }

  // --- values ---

  bool is_dict(Id id) const {
    const auto* rule = view_.as<common_peg_rule_parser>(id);
    if (view_.as<common_peg_ref_parser>(id) != nullptr) return is_dict(view_.children(id).front());
    return rule != nullptr && rule->name == "gemma4-dict";
  }

  Piece dict(const HeldSchema& held) {
    const auto rule = [&](const char* name) { return piece(view_.arena().get_rule(name), {.tool = 0}).text; };
    if (held.root() == nullptr) return {.text = rule("gemma4-dict")};
    if (!dicts_)
      dicts_.emplace(
          rules_, strings_, [&](const common_json* s) { return json(s, kAnyJson).text; }, rule("gemma4-value"),
          rule("gemma4-dict"));
    return {.text = dicts_->value(held, held.root())};
  }

  Piece json(const common_json* schema, const char* otherwise) {
    std::string text = otherwise;
    if (schema != nullptr) {
      const auto held = std::ranges::find_if(held_, [&](const HeldSchema& each) { return each.owns(schema); });
      text = held == held_.end() ? schema->dump() : held->text_of(*schema);
    }
    std::string& rule = json_rules_[text];
    if (rule.empty()) {
      rule = rules_.reserve();
      rules_.define(rule, "[{]");
      schemas_[rule] = text;
    }
    return {.text = rule};
  }

  /// Text as it is, up to what ends it.
  Piece string_value(Id id, const Context& context) {
    const std::vector<std::string> ends = view_.delimiters(id);
    const HeldSchema* held = held_of(context);
    return held == nullptr ? until(ends, false) : string_of(*held, context, {.texts = ends});
  }

  Piece string_of(const HeldSchema& held, const Context& context, BareStrings::Ends&& ends) {
    ends.not_first = std::exchange(shunned_, {});
    return {.text = strings_.rule(held, context.schema, ends), .open_first = true};
  }

  // --- parts of parts ---

  Piece of(Id, const common_peg_sequence_parser& part, const Context& context) {
    PieceRow row(rules_.add(kSpace));
    for (std::size_t i = 0; i < part.children.size(); ++i) {
      // The receiver of a message is the tool.
      const auto* literal = view_.as<common_peg_literal_parser>(part.children[i]);
      if (context.tool >= 0 && literal != nullptr && literal->literal.ends_with(" to=") &&
          i + 1 < part.children.size() && view_.as<common_peg_until_parser>(part.children[i + 1]) != nullptr) {
        row.add({.text = rules_.literal(literal->literal + tools_[static_cast<std::size_t>(context.tool)].name)});
        ++i;
        continue;
      }
      // "a=1, b=2": the first of a list, then the rest.
      if (i + 1 < part.children.size()) {
        ArgumentList list = first_and_rest(view_, part.children[i], part.children[i + 1]);
        if (!list.items.empty()) {
          row.add({.text = arguments(list, context)});
          ++i;
          continue;
        }
      }
      row.add(piece(part.children[i], context));
      // The parser reads on where the end of thoughts is left out.
      if (i + 1 < part.children.size() && view_.has(part.children[i], Tags::REASONING)) {
        const std::string end = view_.optional_end(part.children[i], part.children[i + 1]);
        if (!end.empty()) row.add({.text = rules_.literal(end)});
        i += end.empty() ? 0 : 1;
      }
    }
    return std::move(row).done();
  }

  Piece of(Id, const common_peg_choice_parser& part, const Context& context) {
    Piece all{.space_first = true, .space_last = true};
    std::string body;
    const std::vector<Id> kept = alternatives(part.children);
    for (const Id id : kept) {
      Piece one = piece(id, context);
      shunned_.clear();
      if (kept.size() == 1) return one;
      body += (body.empty() ? "" : " | ") + (one.text.empty() ? "\"\"" : one.text);
      all.space_first &= one.space_first;
      all.space_last &= one.space_last;
      all.open_first |= one.open_first;
      all.peeks |= one.peeks;
    }
    if (!body.empty() && body != "\"\"") all.text = rules_.add(body);
    return all;
  }

  /// Those with a call, if there are; rather without content; and none that only looks ahead.
  std::vector<Id> alternatives(std::vector<Id> all) {
    const auto prefer = [&](auto&& wanted) {
      if (std::ranges::any_of(all, wanted)) std::erase_if(all, [&](Id id) { return !wanted(id); });
    };
    prefer([&](Id id) { return calls(id); });
    if (std::ranges::none_of(all, [&](Id id) { return calls(id) && view_.has(id, Tags::REASONING); }))
      prefer([&](Id id) { return !view_.has(id, Tags::CONTENT); });
    prefer([&](Id id) { return view_.as<common_peg_and_parser>(view_.bare(id)) == nullptr; });
    prefer([&](Id id) { return !is_numbered(id); });
    return all;
  }

  Piece of(Id id, const common_peg_repetition_parser& part, const Context& context) {
    int least = part.min_count, most = part.max_count;
    if (least == 0 && most == 1 && view_.begins_with(part.child, kStray)) return {};
    const bool call = calls(part.child);
    const bool thoughts = view_.has(part.child, Tags::REASONING);
    if (!call && !thoughts && least == 0 && view_.has(part.child, Tags::CONTENT)) return {};
    if (ArgumentList list = repeated(view_, id); !list.items.empty()) return {.text = arguments(list, context)};
    if (call) {
      const bool further = least == 0 && most < 0;  // behind a first one
      if (!parallel_ && further) return {};
      if (!further) least = 1;
      if (!parallel_) most = 1;
      if (whole_ && most < 0) most = further ? kMostCalls - 1 : kMostCalls;
    } else if (most < 0 && thoughts) {
      most = std::max(least, 1);
    }
    if (context.schema != nullptr && view_.outermost(part.child, M3::TOOL_ARG_ITEM).size() == 1) {
      least = std::max(least, context.schema->value("minItems", 0));
      if (context.schema->contains("maxItems")) most = std::max(context.schema->value("maxItems", 0), 0);
      if (most == 0) return {};
    }
    Piece one = piece(part.child, context);
    if (one.text.empty() || (least == 1 && most == 1)) return one;
    return {.text = fmt::format("({}){}", one.text, times(least, most)), .peeks = one.peeks && least > 0};
  }

  static std::string times(int least, int most) {
    if (most < 0) return least == 0 ? "*" : least == 1 ? "+" : fmt::format("{{{},}}", least);
    return least == 0 && most == 1 ? "?" : fmt::format("{{{},{}}}", least, most);
  }

  /// Of one of the alternatives that the object's schema has.
  std::string arguments(const ArgumentList& list, const Context& context) {
    const HeldSchema* held = held_of(context);
    const auto objects = held == nullptr ? std::vector<const common_json*>() : held->alternatives(context.schema);
    std::vector<std::string> texts;
    for (const common_json* object : objects)
      if (auto some = arguments_of(list, context, object)) texts.push_back(std::move(*some));
    if (texts.empty() && must_call_ && !objects.empty())
      throw std::runtime_error(fmt::format("it can't write what the schema of '{}' asks for",
                                           tools_[static_cast<std::size_t>(context.tool)].name));
    if (texts.empty()) return arguments_of(list, context, nullptr).value_or("");
    if (texts.size() == 1) return texts[0];
    std::string body;
    for (const std::string& text : texts) body += (body.empty() ? "" : " | ") + (text.empty() ? "\"\"" : text);
    return rules_.add(body);
  }

  /// Each argument once: the required ones always, the others or not. `object`: the schema; nullptr: it isn't known.
  /// nullopt: one that is required can't be written, or there must be one and there is none.
  std::optional<std::string> arguments_of(const ArgumentList& list, Context context, const common_json* object) {
    if (object != nullptr) context.schema = object;
    const auto row = [&](const std::vector<Id>& ids) {
      PieceRow all(rules_.add(kSpace));
      for (const Id id : ids) all.add(piece(id, context));
      return std::move(all).done().text;
    };
    ArgumentTexts texts{.before = row(list.before), .behind = row(list.behind), .between_only = list.between_only};
    for (const Id item : list.items) {
      const Id argument = view_.outermost(item, Tags::TOOL_ARG).front();
      const auto& names = view_.names(argument, Tags::TOOL_ARG_NAME);
      const std::string name = names.size() == 1 ? *names.begin() : "";
      if (object != nullptr && !name.empty() && !HeldSchema::may_have(*object, name)) continue;
      const bool required = object != nullptr && HeldSchema::is_required(*object, name);
      if (object != nullptr && !is_writable(argument, held_of(context)->property(object, name), *held_of(context))) {
        if (required) return std::nullopt;
        continue;
      }
      texts.items.push_back({.text = piece(item, context).text, .required = required});
    }
    if (object != nullptr) {
      const auto n = static_cast<std::size_t>(std::ranges::count(texts.items, true, &ArgumentTexts::Item::required));
      const std::size_t required = HeldSchema::n_required(*object);  // some parsers have these before the list
      count_as(*object, required - std::min(required, n), texts);
    }
    if (!may_come(texts)) return std::nullopt;
    return arguments_rule(texts, rules_);
  }

  /// Where the parser reads nothing but a string, there is no other value.
  bool is_writable(Id argument, const common_json* schema, const HeldSchema& held) {
    return !view_.has(argument, Tags::TOOL_ARG_STRING_VALUE) || view_.has(argument, Tags::TOOL_ARG_VALUE) ||
           held.allows_text(schema);
  }

  ParserView view_;
  std::span<const ToolSpec> tools_;
  bool whole_, parallel_;
  bool must_call_ = false;
  std::vector<HeldSchema> held_;
  GbnfRules rules_;
  BareStrings strings_{rules_};
  std::map<std::string, std::string> schemas_, json_rules_;
  std::map<std::pair<Id, Context>, Piece> named_;
  std::optional<DictForm> dicts_;
  std::string shunned_;  ///< with which the next text may not begin
};

}  // namespace

CallGrammar call_grammar(const common_peg_arena& parser, std::span<const ToolSpec> tools, bool whole, bool parallel,
                         const SpecialNames& marks, const std::function<std::string(GbnfRules&)>& beside) {
  return CallWriter(parser, tools, whole, parallel, marks).write(beside);
}

}  // namespace coppice::text
