#include "text/thought_marks.h"

#include <fmt/format.h>

#include "text/gbnf_text.h"

namespace coppice::text {

namespace {

enum class Place : std::uint8_t { kBefore, kIn, kBehind };

/// Where the prompt's end stands: before thoughts, which may come; in them; or behind them.
Place place_of(const std::string& opening, const ThoughtMarks& marks) {
  const std::size_t begun = opening.rfind(marks.begin);
  if (begun == opening.npos) return Place::kBefore;
  return opening.find(marks.end, begun + marks.begin.size()) == opening.npos ? Place::kIn : Place::kBehind;
}

}  // namespace

ThoughtMarks thought_marks(const std::string& source, const std::string& begin, const std::string& end) {
  const auto has = [&](const char* text) { return source.find(text) != source.npos; };
  ThoughtMarks marks{.begin = begin, .end = end};
  if (begin == "<|channel|>analysis<|message|>") {  // gpt-oss
    marks.between = "<|start|>assistant";
    marks.text = "<|channel|>final<|message|>";
    marks.again = true;
  } else if (begin.empty() && has("to=self") && has("<|eom|>")) {  // Muse Glimmer
    marks = {.begin = " to=self<|message|>",
             .end = "<|eom|>",
             .between = "<|start|>assistant",
             .text = " to=user<|message|>",
             .again = true};
  } else if (begin == "<|START_THINKING|>") {  // Command R7B, North Code
    const bool text = has("<|START_TEXT|>");
    marks.text = text ? "<|START_TEXT|>" : "<|START_RESPONSE|>";
    marks.text_end = text ? "<|END_TEXT|>" : "<|END_RESPONSE|>";
  } else if (begin == "<|open|>think<|sep|>") {  // Kimi K3
    marks.text = "<|open|>response<|sep|>";
    marks.text_end = "<|close|>response<|sep|>";
  } else if (begin == "<|channel>thought") {  // Gemma 4
    marks.again = true;
  }
  if (marks.begin.empty() || marks.end.empty()) return {};
  return marks;
}

ThoughtBounds thought_bounds(const std::string& opening, const ThoughtMarks& marks, bool calls) {
  if (marks.end.empty()) return {};
  const Place place = place_of(opening, marks);
  if (place == Place::kBehind && !marks.again) return {};
  const std::string to_text = marks.end + marks.between + marks.text;
  return {.begin = marks.begin,
          .end = marks.end,
          .open = place == Place::kIn,
          .close = calls ? marks.end + marks.between : to_text,
          .last = marks.again ? to_text : ""};
}

FormFrame form_frame(const std::string& opening, const ThoughtMarks& marks, const SpecialNames& names) {
  if (marks.end.empty()) return {};
  GbnfRules rules(names);
  const auto literal = [&](const std::string& text) { return text.empty() ? text : rules.literal(text) + " "; };
  const Place place = place_of(opening, marks);
  const std::string rest = rules.until({marks.end}, true) + " " + literal(marks.between);
  std::string root;
  if (place == Place::kIn) root = rest;
  if (place == Place::kBefore) root = fmt::format("({}{})? ", literal(marks.begin), rest);
  root += literal(marks.text) + FormFrame::kForm;
  if (!marks.text_end.empty()) root += fmt::format(" ({})?", rules.literal(marks.text_end));
  rules.define(FormFrame::kForm, "[{]");
  return {.grammar = rules.text(root), .tokens = rules.tokens()};
}

}  // namespace coppice::text
