#include "server/api/responses/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <set>
#include <utility>

#include "port/turn.h"
#include "server/api/base/ignored_fields.h"
#include "server/api/base/json_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/base/structured_output.h"
#include "server/api/base/telemetry.h"
#include "server/api/base/tool_fields.h"
#include "server/api/responses/responses_items.h"
#include "server/jobs/prompt_text.h"

namespace coppice::server {

namespace {

constexpr UnbuiltField kUnbuiltResponses[] = {{"conversation"}, {"background"},     {"prompt"},
                                              {"messages"},     {"max_tokens", -1}, {"max_completion_tokens", -1}};

constexpr std::size_t kMaxReferences = 1024;

constexpr const char* kPath = "/v1/responses";

Json parsed(const ConversationItem& item) {
  return boost::json::parse(item.json, {}, {.max_depth = kMaxJsonDepth});
}

/// The conversation that the request goes on from, the same as if its items were sent again.
void add_previous(const StoredResponse& last, Turns& turns) {
  for (const StoredResponse* turn : conversation(last)) {
    for (const auto* items : {&turn->input, &turn->output}) {
      for (const ConversationItem& item : *items) {
        const Json json = parsed(item);
        try {
          turns.add(JsonFields(json.get_object()));
        } catch (const RequestError& e) {  // what the model wrote, and was stopped in
          throw RequestError::bad_field("previous_response_id", fmt::format("cannot go on from it: {}", e.what()));
        }
      }
    }
  }
}

/// {"type": "item_reference", "id"}: an item of a stored response's output. Its id has the response's in it.
/// `seen`: ids of those before it. A few bytes stand for a large item, so each may come once.
ConversationItem referred(const JsonFields& item, const ResponseOwner& owner, ResponseStore& store,
                          std::set<std::string>& seen) {
  const std::string id = item.required_string("id");
  if (!seen.insert(id).second) throw RequestError::bad_field(item.path("id"), "is a duplicate");
  if (seen.size() > kMaxReferences)
    throw RequestError::bad_field("input", fmt::format("must refer to at most {} items", kMaxReferences));
  const std::size_t begin = std::min(id.find('_'), id.size() - 1) + 1;
  const auto response = store.find(id.substr(begin, id.rfind('_') - begin), owner);
  if (response)
    for (const ConversationItem& candidate : response->output)
      if (candidate.id == id) return candidate;
  throw RequestError(404, fmt::format("Item with id '{}' not found.", id), item.path("id"), "item_not_found");
}

/// With what is to be kept of them, if `keep`.
std::vector<ConversationItem> add_input(const JsonFields& f, bool keep, const ResponseOwner& owner,
                                        ResponseStore& store, Turns& turns) {
  const Json* input = f.find("input");
  if (input == nullptr) throw RequestError::bad_field("input", "is required", "missing_field");
  const JsonArray text = {text_item(input->is_string() ? std::string(input->get_string()) : "")};
  const JsonArray* items = input->is_string() ? &text : input->if_array();
  if (items == nullptr) throw RequestError::bad_field("input", "must be a string or a list of items", "invalid_type");
  if (items->empty()) throw RequestError::bad_field("input", "must not be empty");
  std::vector<ConversationItem> kept;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < items->size(); ++i) {
    port::between_steps();
    const std::string where = fmt::format("input[{}]", i);
    const JsonObject& item = object_of(&(*items)[i], where);
    const JsonFields fields(item, where + ".");
    if (fields.string("type") == "item_reference") {
      ConversationItem other = referred(fields, owner, store, seen);
      turns.add(JsonFields(parsed(other).get_object(), where + "."));
      if (keep) kept.push_back(std::move(other));
    } else {
      turns.add(fields);
      if (keep) kept.push_back(kept_item(item, turns.sees()));
    }
  }
  return kept;
}

/// Null: the request has none.
std::shared_ptr<const StoredResponse> find_previous(const JsonFields& f, const ResponseOwner& owner,
                                                    ResponseStore& store) {
  const auto id = f.string("previous_response_id");
  if (!id || id->empty()) return nullptr;
  if (!store.on())
    throw RequestError::unsupported("previous_response_id", "this server stores no responses (--response-store 0)");
  auto found = store.find(*id, owner);
  if (!found)
    throw RequestError(400, fmt::format("Previous response with id '{}' not found.", *id), "previous_response_id",
                       "previous_response_not_found");
  return found;
}

/// The chat, and what is to be stored of it. Instructions are not inherited.
std::shared_ptr<StoredResponse> parse_conversation(const JsonFields& f, const ResponseOwner& owner,
                                                   ResponseStore& store, int most_pictures, GenerationRequest& r) {
  Turns turns(most_pictures);
  if (auto instructions = f.string("instructions"); instructions && !instructions->empty())
    turns.add_text("system", *std::move(instructions));
  auto previous = find_previous(f, owner, store);
  if (previous) add_previous(*previous, turns);
  const bool keep = f.boolean("store").value_or(true) && store.on();
  auto input = add_input(f, keep, owner, store, turns);
  r.messages = turns.take();
  return keep ? store.begin(owner, std::move(previous), std::move(input)) : nullptr;
}

void parse_responses_choice(const JsonFields& f, Tools& tools) {
  const Json* choice = f.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    const std::string_view name = choice->get_string();
    if (name != "auto" && name != "none" && name != "required")
      throw RequestError::bad_field("tool_choice", "must be \"auto\", \"none\", \"required\" or name a function");
    tools.may_call = name != "none" || tools.specs.empty();
    tools.must_call = name == "required";
  } else {
    const JsonFields named(object_of(choice, "tool_choice"), "tool_choice.");
    const std::string type = named.required_string("type");
    if (type == "allowed_tools") {
      allow_tools(
          named,
          [](const JsonFields& tool) {
            return tool.string("type").value_or("function") == "function" ? tool.required_string("name") : "";
          },
          tools);
    } else if (type == "function") {
      tools.must_call = true;
      tools.only = named.required_string("name");
    } else {
      throw RequestError::unsupported("tool_choice.type", "only \"function\" and \"allowed_tools\" are supported");
    }
  }
  check_choice(tools, "tool_choice", "parameters");
}

Tools parse_tool_list(const JsonFields& f) {
  Tools tools;
  parse_flat_tools(f, "function", "parameters", [](const std::string& tool) { log_ignored(kPath, tool); }, tools);
  parse_responses_choice(f, tools);
  tools.parallel = f.boolean("parallel_tool_calls").value_or(true) && tools.only.empty();
  parse_variables(f, tools);
  const Json* reasoning = f.find("reasoning");
  if (reasoning == nullptr) return tools;
  if (const auto effort = JsonFields(object_of(reasoning, "reasoning"), "reasoning.").string("effort")) {
    tools.variables["reasoning_effort"] = dump(Json(*effort));
    tools.thinks = *effort != "none";
  }
  return tools;
}

/// "text": {"format": {"type", "schema"}}
void parse_form(const JsonFields& f, GenerationRequest& r) {
  const Json* text = f.find("text");
  const Json* format = text == nullptr ? nullptr : JsonFields(object_of(text, "text"), "text.").find("format");
  if (format == nullptr) return;
  const JsonFields form(object_of(format, "text.format"), "text.format.");
  const std::string type = form.required_string("type");
  if (type == "text") return;
  const Json* schema = form.find("schema");
  const Json any = JsonObject{{"type", "object"}};
  if (type == "json_object") schema = &any;
  if (type != "json_object" && type != "json_schema")
    throw RequestError::unsupported("text.format.type",
                                    "only \"text\", \"json_object\" and \"json_schema\" are supported");
  if (schema == nullptr) throw RequestError::bad_field("text.format.schema", "is required", "missing_field");
  r.grammar = grammar::Constraint{.source = schema_source(*schema, "text.format", is_strict(format->get_object())),
                                  .field = "text.format"};
  settle_form(r.tools, r.grammar);
}

constexpr std::size_t kMaxPairs = 16, kMaxNameCharacters = 64, kMaxValueCharacters = 512;  // OpenAI's

/// It is stored, and told with each answer.
void check_metadata(const JsonFields& f) {
  const Json* field = f.find("metadata");
  if (field == nullptr) return;
  const JsonObject* pairs = field->if_object();
  if (pairs == nullptr) throw RequestError::bad_field("metadata", "must be an object", "invalid_type");
  if (pairs->size() > kMaxPairs)
    throw RequestError::bad_field("metadata", fmt::format("has at most {} pairs", kMaxPairs));
  const auto characters = [](std::string_view text) {
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  for (const auto& [name, value] : *pairs) {
    if (!value.is_string()) throw RequestError::bad_field("metadata", "must hold strings only", "invalid_type");
    if (characters(name) > kMaxNameCharacters || characters(std::string_view(value.get_string())) > kMaxValueCharacters)
      throw RequestError::bad_field("metadata", fmt::format("names have at most {} characters, values {}",
                                                            kMaxNameCharacters, kMaxValueCharacters));
  }
}

/// What the answer tells of its request, see ResponseTerms. As text: values may take many times as much.
std::string repeated(const JsonFields& f) {
  JsonObject json = {{"instructions", nullptr},
                     {"metadata", JsonObject()},
                     {"parallel_tool_calls", true},
                     {"previous_response_id", nullptr},
                     {"truncation", "disabled"},
                     {"tool_choice", "auto"},
                     {"tools", JsonArray()},
                     {"reasoning", nullptr},
                     {"text", JsonObject{{"format", JsonObject{{"type", "text"}}}}}};
  for (auto& field : json)
    if (const Json* value = f.find(std::string(field.key()).c_str())) field.value() = *value;
  const std::string object = dump(std::move(json));
  return object.substr(1, object.size() - 2);
}

}  // namespace

GenerationRequest parse_responses_request(const JsonObject& body, const RequestLimits& limits, ResponseStore& store) {
  const JsonFields f(body);
  refuse_unbuilt(f, kUnbuiltResponses);
  refuse_unbuilt_samplers(f);
  refuse_openai_fields(f);
  log_ignored_fields(kPath, f,
                     {"include", "max_tool_calls", "service_tier", "user", "safety_identifier", "prompt_cache_key",
                      "prompt_cache_retention", "reasoning.summary", "text.verbosity", "context_management"});
  // Nothing is ever left out of the input: "auto" is taken as long as that is not needed, and is the usual error then.
  const std::string truncation = f.string("truncation").value_or("disabled");
  if (truncation != "disabled" && truncation != "auto")
    throw RequestError::bad_field("truncation", "must be \"auto\" or \"disabled\"");
  check_metadata(f);
  GenerationRequest r;
  r.input_field = "input";
  r.model = f.string("model").value_or("");
  apply_defaults(limits.defaults, r);
  parse_sampling_fields(f, limits, r);
  parse_engine_fields(f, r);
  r.telemetry = parse_telemetry(f);
  r.tools = parse_tool_list(f);
  parse_form(f, r);
  parse_max_tokens(f, {"max_output_tokens"}, 1, r);
  r.stream = f.boolean("stream").value_or(false);
  auto stored = parse_conversation(f, {std::string(limits.tenant), r.cache_salt}, store, limits.most_pictures, r);
  auto own = std::make_shared<const ResponseTerms>(repeated(f), std::move(stored));
  r.own_bytes = own->repeated.size();
  r.own = std::move(own);
  return r;
}

std::string response_count_reply(const Model& model, const HttpRequest& request, ResponseStore& store) {
  const ModelFacts& facts = model.facts();
  JsonObject json = parse_body(request.body, json_limits(facts.context_length));
  json["store"] = false;
  if (request.salt) json["cache_salt"] = *request.salt;
  RequestLimits limits = request_limits(facts);
  limits.tenant = request.tenant;
  GenerationRequest r = parse_responses_request(json, limits, store);
  const kv::Text prompt = chat_symbols(model, std::move(r.messages), r.turn_end, r.tools, r.input_field, kAnyLength);
  return dump(JsonObject{{"object", "response.input_tokens"}, {"input_tokens", prompt.size()}});
}

}  // namespace coppice::server
