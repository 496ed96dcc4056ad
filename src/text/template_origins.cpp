#include "text/template_origins.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "check/assert.h"
#include "text/origin_marks.h"

namespace coppice::text {

namespace {

using jinja::cast_val;
using jinja::is_val;

/// Filters and methods that lose marks, or keep them only where all of a string has them.
const std::set<std::string_view> kLossyFilters = {"tojson", "join", "replace", "indent", "string"};
const std::set<std::string_view> kLossyMethods = {"split", "rsplit", "replace", "join"};

/// What a step works on: its operand, and arguments.
using Operands = std::vector<jinja::value>;

/// The strings in some values, by who wrote them.
struct Written {
  std::string client, others;

  explicit Written(const Operands& values) {
    for (const jinja::value& value : values) add(value);
  }

 private:
  void add(const jinja::value& value) {
    if (is_val<jinja::value_string>(value)) {
      for (const jinja::string_part& part : value->val_str.parts) (part.is_input ? client : others) += part.val + '\n';
    } else if (is_val<jinja::value_array>(value)) {
      for (const jinja::value& item : value->as_array()) add(item);
    } else if (is_val<jinja::value_object>(value)) {
      for (const auto& [key, item] : value->as_ordered_object()) {
        add(key);
        add(item);
      }
    }
  }
};

/// Bytes [begin, end) of a string, with their marks.
void add_part(const jinja::string& from, std::size_t begin, std::size_t end, jinja::string& to) {
  std::size_t at = 0;
  for (const jinja::string_part& part : from.parts) {
    const std::size_t first = std::max(begin, at), last = std::min(end, at + part.val.size());
    if (first < last) to.parts.push_back({part.is_input, part.val.substr(first - at, last - first)});
    at += part.val.size();
  }
}

/// operands: the text, what is replaced, what takes its place.
jinja::string replaced(const Operands& operands) {
  const jinja::string whole = operands[0]->as_string(), by = operands[2]->as_string();
  const std::string text = whole.str(), old = operands[1]->as_string().str();
  jinja::string result;
  std::size_t at = 0;
  for (std::size_t next = 0; !old.empty() && (next = text.find(old, at)) != std::string::npos; at = next + old.size()) {
    add_part(whole, at, next, result);
    result.append(by);
  }
  add_part(whole, at, text.size(), result);
  return result;
}

/// A step that loses marks, and what puts back those of names.
template <class Step>
class KeptStep : public jinja::expression {
 public:
  KeptStep(const SpecialNames& names, std::string name, std::unique_ptr<Step> step)
      : names_(names), name_(std::move(name)), step_(std::move(step)) {
    pos = step_->pos;
  }
  std::string type() const override { return step_->type(); }
  jinja::value execute_impl(jinja::context& context) const override {
    jinja::value result = step_->execute(context);
    if (is_val<jinja::value_string>(result)) return is_named(result) ? repaired(result, operands(context)) : result;
    if (!is_val<jinja::value_array>(result) || std::ranges::none_of(result->as_array(), named())) return result;
    auto list = jinja::mk_val<jinja::value_array>();
    for (const jinja::value& item : result->as_array())
      list->push_back(is_named(item) ? repaired(item, operands(context)) : item);
    return list;
  }

 private:
  /// Once more: that they have effects is not worth a thought, as only a text with names comes here.
  Operands operands(jinja::context& context) const;

  std::function<bool(const jinja::value&)> named() const {
    return [this](const jinja::value& value) { return is_named(value); };
  }
  bool is_named(const jinja::value& value) const {
    return is_val<jinja::value_string>(value) && names_.find(value->val_str.str(), 0);
  }

  jinja::value repaired(const jinja::value& value, const Operands& operands) const {
    if (name_ == "replace" && operands.size() == 3) {
      const jinja::string exact = replaced(operands);
      if (exact.str() == value->val_str.str()) return jinja::mk_val<jinja::value_string>(exact);
    }
    const Written written(operands);
    jinja::string parts;
    for (const jinja::string_part& part : value->val_str.parts) {
      if (part.is_input) {
        parts.parts.push_back(part);
      } else {
        add_parts(part.val, written, parts);
      }
    }
    return jinja::mk_val<jinja::value_string>(parts);
  }

  void add_parts(const std::string& text, const Written& written, jinja::string& to) const {
    std::size_t at = 0;
    const auto add = [&](std::size_t end, bool input) {
      if (end > at) to.parts.push_back({input, text.substr(at, end - at)});
      at = end;
    };
    while (const auto name = names_.find(text, at)) {
      const std::string_view its = std::string_view(text).substr(name->begin, name->end - name->begin);
      const bool others = written.others.find(its) != std::string::npos;
      add(name->begin, false);
      add(name->end, !others || written.client.find(its) != std::string::npos);
    }
    add(text.size(), false);
  }

  const SpecialNames& names_;
  std::string name_;
  std::unique_ptr<Step> step_;
};

template <>
Operands KeptStep<jinja::filter_expression>::operands(jinja::context& context) const {
  Operands values = {step_->operand->execute(context)};
  if (const auto* call = dynamic_cast<const jinja::call_expression*>(step_->filter.get()))
    for (const auto& argument : call->args) values.push_back(argument->execute(context));
  return values;
}

template <>
Operands KeptStep<jinja::call_expression>::operands(jinja::context& context) const {
  const auto& member = dynamic_cast<const jinja::member_expression&>(*step_->callee);
  Operands values = {member.object->execute(context)};
  for (const auto& argument : step_->args) values.push_back(argument->execute(context));
  return values;
}

template <>
Operands KeptStep<jinja::member_expression>::operands(jinja::context& context) const {
  return {step_->object->execute(context)};
}

constexpr const char* kKept = "kept";

/// A function that returns a step's result.
struct KeptFunction final : jinja::expression {
  explicit KeptFunction(jinja::statement_ptr its_step) : step(std::move(its_step)) { pos = step->pos; }
  jinja::value execute_impl(jinja::context& context) const override {
    return jinja::mk_val<jinja::value_func>(
        kKept, [result = step->execute(context)](const jinja::func_args&) -> jinja::value { return result; });
  }
  jinja::statement_ptr step;
};

/// An object that has a step's result.
struct KeptMember final : jinja::expression {
  explicit KeptMember(jinja::statement_ptr its_step) : step(std::move(its_step)) { pos = step->pos; }
  jinja::value execute_impl(jinja::context& context) const override {
    auto object = jinja::mk_val<jinja::value_object>();
    object->insert(kKept, step->execute(context));
    return object;
  }
  jinja::statement_ptr step;
};

jinja::statement_ptr identifier(const char* name, std::size_t pos) {
  auto made = std::make_unique<jinja::identifier>(name);
  made->pos = pos;
  return made;
}

/// A step's node stays where it is: what it has moves into one inside, whose result it passes on.
template <class Step, class... Parts>
std::unique_ptr<KeptStep<Step>> moved_in(const SpecialNames& names, std::string name, std::size_t pos,
                                         Parts&&... parts) {
  auto inner = std::make_unique<Step>(std::forward<Parts>(parts)...);
  inner->pos = pos;
  return std::make_unique<KeptStep<Step>>(names, std::move(name), std::move(inner));
}

void keep_marks(jinja::filter_expression& step, const SpecialNames& names) {
  const jinja::statement* filter = step.filter.get();
  if (const auto* call = dynamic_cast<const jinja::call_expression*>(filter)) filter = call->callee.get();
  const auto* name = dynamic_cast<const jinja::identifier*>(filter);
  if (name == nullptr || !kLossyFilters.contains(name->val)) return;
  step.operand =
      moved_in<jinja::filter_expression>(names, name->val, step.pos, std::move(step.operand), std::move(step.filter));
  step.filter = identifier("string", step.pos);  // of a string: itself
}

void keep_marks(jinja::call_expression& step, const SpecialNames& names) {
  const auto* member = dynamic_cast<const jinja::member_expression*>(step.callee.get());
  if (member == nullptr || member->computed) return;
  const auto* name = dynamic_cast<const jinja::identifier*>(member->property.get());
  if (name == nullptr || !kLossyMethods.contains(name->val)) return;
  step.callee = std::make_unique<KeptFunction>(
      moved_in<jinja::call_expression>(names, name->val, step.pos, std::move(step.callee), std::move(step.args)));
  step.args.clear();
}

void keep_marks(jinja::member_expression& step, const SpecialNames& names) {
  if (!step.computed || dynamic_cast<const jinja::slice_expression*>(step.property.get()) == nullptr) return;
  step.object = std::make_unique<KeptMember>(moved_in<jinja::member_expression>(
      names, "slice", step.pos, std::move(step.object), std::move(step.property), true));
  step.property = identifier(kKept, step.pos);
  step.computed = false;
}

/// Changes all steps of a program that lose marks, those inside first.
void keep_marks(const jinja::statements& body, const SpecialNames& names) {
  jinja::context walk;
  walk.visitor = [&](bool, const jinja::statement* node, const std::vector<jinja::visitor_pair>& children) {
    const auto visit = [&](const jinja::statement* child) {
      if (child != nullptr) child->visit(walk);
    };
    for (const auto& [label, nodes] : children)
      for (const jinja::statement* child : nodes) visit(child);
    // The engine calls these leaves.
    if (const auto* array = dynamic_cast<const jinja::array_literal*>(node))
      for (const auto& item : array->val) visit(item.get());
    if (const auto* tuple = dynamic_cast<const jinja::tuple_literal*>(node))
      for (const auto& item : tuple->val) visit(item.get());
    if (const auto* object = dynamic_cast<const jinja::object_literal*>(node))
      for (const auto& [key, item] : object->val) {
        visit(key.get());
        visit(item.get());
      }
    auto* own = const_cast<jinja::statement*>(node);  // NOLINT: the program is ours, its visitor shows it as const
    if (auto* filter = dynamic_cast<jinja::filter_expression*>(own)) keep_marks(*filter, names);
    if (auto* call = dynamic_cast<jinja::call_expression*>(own)) keep_marks(*call, names);
    if (auto* member = dynamic_cast<jinja::member_expression*>(own)) keep_marks(*member, names);
  };
  for (const auto& node : body) node->visit(walk);
}

/// The spans of `from` in `to`, which is the same text but for one place.
std::vector<TextSpan> moved(const std::vector<TextSpan>& spans, const std::string& from, const std::string& to) {
  if (from == to) return spans;
  const std::size_t shorter = std::min(from.size(), to.size());
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(from, to).in1 - from.begin());
  std::size_t behind = 0;
  while (behind < shorter - same && from[from.size() - 1 - behind] == to[to.size() - 1 - behind]) ++behind;
  std::vector<TextSpan> result;
  const auto place = [&](std::size_t at, bool end) {
    if (at <= same) return at;
    if (at >= from.size() - behind) return at + to.size() - from.size();
    return end ? to.size() - behind : same;
  };
  for (const TextSpan& span : spans) {
    const TextSpan there{place(span.begin, false), place(span.end, true)};
    if (there.begin < there.end) result.push_back(there);
  }
  return result;
}

}  // namespace

/// The whole template as one statement.
class MarkedTemplate::Program final : public jinja::statement {
 public:
  explicit Program(jinja::statements body) : body_(std::move(body)) { pos = 0; }

  /// What a thread's runs mark, and what the first of them writes. While it lives, the thread's runs have it.
  class Recording {
   public:
    /// `quoted` outlives it.
    Recording(Origin origin, std::span<const std::string> quoted) : origin_(origin), quoted_(quoted) {
      COPPICE_ASSERT(current == nullptr);
      current = this;
    }
    ~Recording() { current = nullptr; }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    const std::string& text() const { return text_; }
    const std::vector<TextSpan>& spans() const { return spans_; }

   private:
    friend Program;
    void record(const jinja::string& parts) {
      if (std::exchange(recorded_, true)) return;
      for (const jinja::string_part& part : parts.parts) {
        if (part.is_input && !part.val.empty()) spans_.push_back({text_.size(), text_.size() + part.val.size()});
        text_ += part.val;
      }
    }

    static inline thread_local Recording* current = nullptr;
    Origin origin_;
    std::span<const std::string> quoted_;
    bool recorded_ = false;
    std::string text_;
    std::vector<TextSpan> spans_;
  };

  std::string type() const override { return "Program"; }
  /// REQUIRES: the thread has a Recording.
  jinja::value execute_impl(jinja::context& context) const override {
    Recording* const recording = Recording::current;
    COPPICE_ASSERT(recording != nullptr);
    mark_origin(context, recording->origin_, recording->quoted_);
    auto results = jinja::mk_val<jinja::value_array>();
    for (const auto& step : body_) results->push_back(step->execute(context));
    auto parts = jinja::runtime::gather_string_parts(results);
    recording->record(parts->val_str);
    return parts;
  }

 private:
  jinja::statements body_;
};

MarkedTemplate::MarkedTemplate(const std::string& source, const std::string& bos, const std::string& eos,
                               SpecialNames names)
    : names_(std::move(names)), template_(source, bos, eos) {
  keep_marks(template_.prog.body, names_);
  auto program = std::make_unique<Program>(std::move(template_.prog.body));
  template_.prog.body.clear();
  template_.prog.body.push_back(std::move(program));
}

MarkedTemplate::~MarkedTemplate() = default;

MarkedTemplate::Rendered MarkedTemplate::render(Origin origin, const Library& library,
                                                std::span<const std::string> quoted) const {
  std::vector<std::string> naming;  // the others need no marks
  std::ranges::copy_if(quoted, std::back_inserter(naming), [&](const std::string& s) { return !!names_.find(s, 0); });
  const Program::Recording recording(origin, naming);
  Rendered rendered{.text = library(template_), .marked = {}};
  rendered.marked = moved(recording.spans(), recording.text(), rendered.text);
  return rendered;
}

}  // namespace coppice::text
