#include "text/thought_marks.h"

#include <fmt/format.h>

namespace coppice::text {

namespace {

enum class Within : std::uint8_t { kBefore, kIn, kBehind };

/// Where the prompt's end stands: before thoughts, which may come; in them; or behind them.
Within where_begun(const std::string& opening, const ThoughtMarks& marks) {
  const std::size_t begun = opening.rfind(marks.begin);
  if (begun == opening.npos) return Within::kBefore;
  return opening.find(marks.end, begun + marks.begin.size()) == opening.npos ? Within::kIn : Within::kBehind;
}

}  // namespace

ThoughtTags unknown_tags(const std::string& source) {
  const auto has = [&](const char* text) { return source.find(text) != source.npos; };
  if (has("<|inner_prefix|>") && has("<|inner_suffix|>"))
    return {.begin = "<|inner_prefix|>", .end = "<|inner_suffix|>"};
  if (has("<|begin|>assistant<|think|>")) return {.begin = "<|think|>", .end = "<|end|><|begin|>assistant"};
  return {};
}

ThoughtMarks thought_marks(const std::string& source, const std::string& begin, const std::string& end) {
  const auto has = [&](const char* text) { return source.find(text) != source.npos; };
  ThoughtMarks marks{.begin = begin, .end = end};
  if (begin == "<|channel|>analysis<|message|>") {  // gpt-oss
    marks.between = "<|start|>assistant";
    marks.text = "<|channel|>final<|message|>";
    marks.again = true;
    marks.calls = {{"<|channel|>commentary to=functions.", ""}, {" to=functions.", "<|channel|>commentary"}};
  } else if (begin.empty() && has("to=self") && has("<|eom|>")) {  // Muse Glimmer
    marks = {.begin = " to=self<|message|>",
             .end = "<|eom|>",
             .between = "<|start|>assistant",
             .text = " to=user<|message|>",
             .again = true,
             .calls = {{" to=", "<|message|>"}}};
  } else if (begin == "<|START_THINKING|>") {  // Command R7B, North Code
    const bool text = has("<|START_TEXT|>");
    marks.text = text ? "<|START_TEXT|>" : "<|START_RESPONSE|>";
    marks.text_end = text ? "<|END_TEXT|>" : "<|END_RESPONSE|>";
  } else if (begin == "<|open|>think<|sep|>") {  // Kimi K3
    marks.text = "<|open|>response<|sep|>";
    marks.text_end = "<|close|>response<|sep|>";
  } else if (begin == "<|think|>") {  // Solar Open
    marks.text = "<|content|>";
    marks.text_end = "<|end|>";
  } else if (begin == "<|channel>thought") {  // Gemma 4
    marks.again = true;
  }
  if (marks.begin.empty() || marks.end.empty()) return {};
  return marks;
}

ThoughtBounds thought_bounds(const std::string& opening, const ThoughtMarks& marks,
                             std::span<const std::string> callable) {
  if (marks.end.empty()) return {};
  const Within within = where_begun(opening, marks);
  if (within == Within::kBehind && !marks.again) return {};
  const std::string to_text = marks.end + marks.between + marks.text;
  ThoughtBounds bounds{.begin = marks.begin,
                       .end = marks.end,
                       .open = within == Within::kIn,
                       .close = callable.empty() ? to_text : marks.end + marks.between,
                       .last = marks.again ? to_text : ""};
  if (!callable.empty() && !marks.calls.empty()) bounds.ways.push_back(marks.text);
  for (const std::string& name : callable)
    for (const auto& [before, behind] : marks.calls) bounds.ways.push_back(before + name + behind);
  return bounds;
}

std::string framed_form(const std::string& opening, const ThoughtMarks& marks, GbnfRules& rules) {
  rules.define(FormFrame::kForm, "[{]");
  if (marks.end.empty()) return FormFrame::kForm;
  const auto literal = [&](const std::string& text) { return text.empty() ? text : rules.literal(text) + " "; };
  const Within within = where_begun(opening, marks);
  const std::string rest = rules.until({marks.end}, true) + " " + literal(marks.between);
  std::string root;
  if (within == Within::kIn) root = rest;
  if (within == Within::kBefore) root = fmt::format("({}{})? ", literal(marks.begin), rest);
  root += literal(marks.text) + FormFrame::kForm;
  if (!marks.text_end.empty()) root += fmt::format(" ({})?", rules.literal(marks.text_end));
  return root;
}

FormFrame form_frame(const std::string& opening, const ThoughtMarks& marks, const SpecialNames& names) {
  if (marks.end.empty()) return {};
  GbnfRules rules(names);
  const std::string root = framed_form(opening, marks, rules);
  return {.grammar = rules.text(root), .tokens = rules.tokens()};
}

}  // namespace coppice::text
