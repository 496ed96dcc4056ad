#include "server/api/base/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "port/turn.h"
#include "server/api/base/ignored_fields.h"
#include "server/api/base/structured_output.h"
#include "server/base/request_error.h"

namespace coppice::server {

namespace {

constexpr std::size_t kMaxTools = 512, kMaxNameBytes = 128;

void check_name(const std::string& name, const std::string& path) {
  const bool good = !name.empty() && name.size() <= kMaxNameBytes && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == ':' || c == '/';
  });
  if (!good)
    throw RequestError::bad_field(path, fmt::format("must be of letters, digits and _-.:/, {} at most", kMaxNameBytes));
}

/// The library finds a field of an object by looking at all: pairs of fields of one object, of all in the value.
std::size_t field_pairs(const Json& value) {
  std::size_t pairs = 0;
  if (const JsonObject* object = value.if_object()) {
    pairs = object->size() * object->size();
    for (const auto& field : *object) pairs += field_pairs(field.value());
  } else if (const JsonArray* array = value.if_array()) {
    for (const Json& item : *array) pairs += field_pairs(item);
  }
  return pairs;
}

/// One of 4,096 fields, or many that have fewer.
constexpr std::size_t kMostFieldPairs = std::size_t{1} << 24;

void check_fields(const Json& value, const std::string& field, std::size_t& pairs) {
  pairs += field_pairs(value);
  if (pairs > kMostFieldPairs)
    throw RequestError::bad_field(
        field,
        fmt::format("has objects of too many fields: the sum of their squares is {} so far, at most {} are taken",
                    pairs, kMostFieldPairs));
}

/// {"type": "function", "function": {...}}: the object inside.
const JsonObject& function_of(const Json& value, const std::string& path) {
  const JsonFields f(object_of(&value, path), path + ".");
  const std::string type = f.string("type").value_or("function");
  if (type != "function")
    throw RequestError::unsupported(f.path("type"), fmt::format("only \"function\" is supported, not \"{}\"", type));
  return object_of(f.find("function"), f.path("function"));
}

/// What a grammar can't enforce is refused, by its keyword.
std::string held_schema(const text::ToolSpec& tool, const std::string& field, bool strict = false) {
  return arguments_source(parse_body(tool.parameters), field, strict, fmt::format("tool '{}'", tool.name)).text;
}

/// What is held where a schema can't be: it never reaches the library that writes grammars for calls, which throws on
/// odd ones.
constexpr const char* kAnyObject = R"({"type":"object","additionalProperties":true})";

/// A grammar holds calls to the schemas that can be enforced, as many as fit into one. Of the others calls are objects.
void hold(text::ToolSpec& tool, const Tools& others) {
  std::size_t bytes = tool.parameters.size();
  for (const text::ToolSpec& other : others.specs) bytes += other.parameters.size();
  tool.held = kAnyObject;
  const auto say = [&](const std::string& why) {
    log_not_held(fmt::format("tool '{}'", tool.name), fmt::format("its schema ({})", why));
  };
  if (bytes > grammar::kMaxSourceBytes)
    return say(fmt::format("all tools' have over {} bytes", grammar::kMaxSourceBytes));
  try {
    tool.held = held_schema(tool, "parameters");
  } catch (const RequestError& e) {  // only a call that is forced needs it
    say(e.what());
  }
}

void parse_choice(const JsonFields& f, Tools& tools) {
  const Json* choice = f.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const std::string_view name = choice->get_string();
    if (name == "auto" || (name == "none" && tools.specs.empty())) return;
    tools.may_call = name != "none";
    tools.must_call = name == "required";
    if (name != "none" && name != "required")
      throw RequestError::bad_field("tool_choice", "must be \"auto\", \"none\", \"required\" or name a function");
  } else if (const JsonFields f_choice(object_of(choice, "tool_choice"), "tool_choice.");
             f_choice.string("type") == "allowed_tools") {
    const JsonFields allowed(object_of(f_choice.find("allowed_tools"), "tool_choice.allowed_tools"),
                             "tool_choice.allowed_tools.");
    allow_tools(
        allowed,
        [](const JsonFields& tool) {
          return JsonFields(object_of(tool.find("function"), tool.path("function")), tool.path("function."))
              .required_string("name");
        },
        tools);
  } else {
    tools.must_call = true;
    tools.only = JsonFields(function_of(*choice, "tool_choice"), "tool_choice.function.").string("name").value_or("");
  }
}

/// Refuses a second tool of one name, and too many.
void add_tool(text::ToolSpec tool, const std::string& path, Tools& to) {
  if (to.specs.size() == kMaxTools) throw RequestError::bad_field("tools", fmt::format("at most {} tools", kMaxTools));
  if (std::ranges::find(to.specs, tool.name, &text::ToolSpec::name) != to.specs.end())
    throw RequestError::bad_field(path + ".name", fmt::format("\"{}\" is there twice", tool.name));
  hold(tool, to);
  to.specs.push_back(std::move(tool));
}

constexpr std::size_t kMaxVariables = 64, kMaxVariablesBytes = std::size_t{64} << 10;

/// What the request's other fields say, and what templates call.
constexpr std::string_view kReservedNames[] = {"messages",
                                               "tools",
                                               "functions",
                                               "add_generation_prompt",
                                               "continue_final_message",
                                               "bos_token",
                                               "eos_token",
                                               "raise_exception",
                                               "strftime_now",
                                               "namespace",
                                               "range",
                                               "loop",
                                               "chat_template",
                                               "tokenize",
                                               "tojson"};

void parse_template_variables(const JsonObject& variables, Tools& tools) {
  constexpr const char* kField = "chat_template_kwargs";
  if (variables.size() > kMaxVariables)
    throw RequestError::bad_field(kField, fmt::format("has at most {} variables", kMaxVariables));
  std::size_t bytes = 0, pairs = 0;
  for (const auto& [name, value] : variables) {
    if (is_reserved_variable(name))
      throw RequestError::bad_field(fmt::format("{}.{}", kField, std::string_view(name)),
                                    "is not a variable that a request may set");
    check_fields(value, fmt::format("{}.{}", kField, std::string_view(name)), pairs);
    std::string json = dump(value);
    bytes += name.size() + json.size();
    if (bytes > kMaxVariablesBytes)
      throw RequestError::bad_field(kField, fmt::format("has at most {} bytes of JSON", kMaxVariablesBytes));
    tools.variables[std::string(name)] = std::move(json);
  }
}

}  // namespace

bool is_reserved_variable(std::string_view name) {
  return std::ranges::find(kReservedNames, name) != std::end(kReservedNames);
}

void parse_variables(const JsonFields& f, Tools& tools) {
  if (const Json* variables = f.find("chat_template_kwargs"))
    parse_template_variables(object_of(variables, "chat_template_kwargs"), tools);
  if (const auto format = f.string("reasoning_format")) {
    tools.keep_thoughts = *format == "none";
    if (*format != "none" && *format != "auto" && *format != "deepseek")
      throw RequestError::bad_field("reasoning_format", "must be \"auto\", \"deepseek\" or \"none\"");
  }
  if (const auto effort = f.string("reasoning_effort")) {
    tools.variables.try_emplace("reasoning_effort", dump(Json(*effort)));
    if (*effort == "none") tools.thinks = false;
  }
  if (const auto thinks = tools.variables.find("enable_thinking"); thinks != tools.variables.end()) {
    if (thinks->second != "true" && thinks->second != "false")
      throw RequestError::bad_field("chat_template_kwargs.enable_thinking", "must be true or false", "invalid_type");
    tools.thinks = thinks->second == "true";
  }
}

text::ToolSpec parse_tool(const JsonObject& function, const std::string& path, const char* schema) {
  const JsonFields f(function, path + ".");
  text::ToolSpec tool{.name = f.string("name").value_or(""),
                      .description = f.string("description").value_or(""),
                      .parameters = R"({"type":"object","properties":{}})"};
  check_name(tool.name, f.path("name"));
  // `true` is a schema: of any object.
  if (const Json* parameters = f.find(schema); parameters != nullptr && *parameters != Json(true))
    tool.parameters = dump(object_of(parameters, f.path(schema)));
  if (f.boolean("strict").value_or(false)) held_schema(tool, f.path(schema), true);
  return tool;
}

void check_choice(Tools& tools, const std::string& field, const char* schema) {
  if (!tools.must_call) return;
  if (tools.specs.empty()) throw RequestError::bad_field(field, "needs 'tools'");
  bool found = false;
  for (std::size_t i = 0; i < tools.specs.size(); ++i) {
    if (!tools.only.empty() && tools.only != tools.specs[i].name) continue;
    if (!tools.allowed.empty() && std::ranges::find(tools.allowed, tools.specs[i].name) == tools.allowed.end())
      continue;
    found = true;
    if (text::ToolSpec& tool = tools.specs[i]; tool.held == kAnyObject)
      tool.held = held_schema(tool, fmt::format("tools[{}].{}", i, schema));
  }
  if (!found) throw RequestError::bad_field(field, fmt::format("there is no tool \"{}\"", tools.only));
}

void allow_tools(const JsonFields& choice, const std::function<std::string(const JsonFields&)>& name_of, Tools& tools) {
  const std::string mode = choice.required_string("mode");
  if (mode != "auto" && mode != "required")
    throw RequestError::bad_field(choice.path("mode"), "must be \"auto\" or \"required\"");
  tools.must_call = mode == "required";
  const JsonArray& list = array_of(choice.find("tools"), choice.path("tools"));
  if (list.empty()) throw RequestError::bad_field(choice.path("tools"), "must not be empty");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", choice.path("tools"), i);
    const std::string name = name_of(JsonFields(object_of(&list[i], where), where + "."));
    if (name.empty()) continue;
    if (std::ranges::find(tools.specs, name, &text::ToolSpec::name) == tools.specs.end())
      throw RequestError::bad_field(where, fmt::format("there is no tool \"{}\"", name));
    tools.allowed.push_back(name);
  }
  // All of them run elsewhere: nothing is left that could be called here.
  if (tools.allowed.empty()) tools.may_call = tools.must_call = false;
}

void settle_form(const Tools& tools, std::optional<grammar::Constraint>& form) {
  if (!form || tools.specs.empty() || !tools.may_call) return;
  if (tools.must_call) {
    form.reset();
  } else if (form->source.kind != grammar::Kind::kJsonSchema) {
    throw RequestError::unsupported(form->field, "only JSON is supported together with tools that may be called");
  }
}

void parse_flat_tools(const JsonFields& f, std::string_view type, const char* schema,
                      const std::function<void(const std::string&)>& ignore, Tools& to) {
  const Json* value = f.find("tools");
  if (value == nullptr) return;
  const JsonArray& list = array_of(value, "tools");
  std::size_t pairs = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    port::between_steps();
    check_fields(list[i], fmt::format("tools[{}].{}", i, schema), pairs);
    const std::string where = fmt::format("tools[{}]", i);
    const JsonObject& tool = object_of(&list[i], where);
    const std::string its_type = JsonFields(tool, where + ".").string("type").value_or(std::string(type));
    if (its_type == type) {
      add_tool(parse_tool(tool, where, schema), where, to);
    } else {
      ignore("tool " + its_type);
    }
  }
}

Tools parse_tools(const JsonFields& f) {
  Tools tools;
  if (const Json* list = f.find("tools")) {
    const JsonArray& array = array_of(list, "tools");
    std::size_t pairs = 0;
    for (std::size_t i = 0; i < array.size(); ++i) {
      port::between_steps();
      check_fields(array[i], fmt::format("tools[{}].function.parameters", i), pairs);
      const std::string path = fmt::format("tools[{}]", i);
      add_tool(parse_tool(function_of(array[i], path), path + ".function"), path + ".function", tools);
    }
  }
  parse_choice(f, tools);
  tools.parallel = f.boolean("parallel_tool_calls").value_or(true) && tools.only.empty();
  parse_variables(f, tools);
  check_choice(tools, "tool_choice", "function.parameters");
  return tools;
}

void parse_arguments(const JsonFields& f, const char* name, text::ChatCall& to) {
  const Json* arguments = f.find(name);
  to.arguments = "{}";
  if (arguments == nullptr || (arguments->is_array() && arguments->get_array().empty())) return;
  if (!arguments->is_object() && !arguments->is_string())
    throw RequestError::bad_field(f.path(name), "must be a JSON object, or its text", "invalid_type");
  if (arguments->is_object()) {
    to.arguments = dump(*arguments);
    to.cut = field_pairs(*arguments) > kMostFieldPairs;
    return;
  }
  std::string text(arguments->get_string());
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return;
  const std::string bare = text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
  if (bare == "null" || bare == "[]") return;
  to.arguments = std::move(text);
  try {
    const Json value(parse_body(to.arguments));
    to.cut = field_pairs(value) > kMostFieldPairs;
    if (has_infinity(value)) to.arguments = dump(value);  // the template's reader of JSON takes no 1e999
  } catch (const RequestError&) {
    to.cut = true;
  }
}

std::vector<text::ChatCall> parse_calls(const JsonFields& f) {
  std::vector<text::ChatCall> calls;
  const Json* list = f.find("tool_calls");
  if (list == nullptr) return calls;
  const JsonArray& array = array_of(list, f.path("tool_calls"));
  for (std::size_t i = 0; i < array.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", f.path("tool_calls"), i);
    const JsonFields function(function_of(array[i], path), path + ".function.");
    text::ChatCall& call = calls.emplace_back();
    call.id = JsonFields(array[i].get_object(), path + ".").string("id").value_or("");
    call.name = function.string("name").value_or("");
    check_name(call.name, function.path("name"));
    parse_arguments(function, "arguments", call);
  }
  return calls;
}

}  // namespace coppice::server
