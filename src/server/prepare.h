// From a request's body to engine requests: parse, check, render the template, tokenize.
//
// They change nothing but what the model keeps: its next id, and the tokens of prompts' pieces. The server runs them on the
// worker: even a small body may wait long for the chat template, which renders one chat at a time, and that would hold up
// everybody's streams. A text is read only as far as the context goes, and a body of many is prepared in steps, so that
// others' turns on the worker come soon.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "kv/types.h"
#include "sampling/make_generation.h"
#include "server/model.h"
#include "server/openai_request.h"

namespace coppice::server {

/// The names a request may call the model by.
struct ServedNames {
  std::string id;
  std::string alias;  ///< empty: none

  /// Is it the id, the alias, "default", or empty?
  bool known(const std::string& name) const {
    return name.empty() || name == id || name == "default" || (!alias.empty() && name == alias);
  }
  /// What responses say: the name asked for, or the id.
  const std::string& resolve(const std::string& name) const { return !alias.empty() && name == alias ? alias : id; }
};

/// Lives as long as the reply is written: nothing in it is large but the echoes.
struct Prepared {
  OpenAiRequest parsed;                   ///< without the texts, and what the requests' samples hold
  std::string model;                      ///< for the response
  std::vector<engine::Request> requests;  ///< one per prompt; ids are set
  std::vector<std::string> echoes;        ///< one per prompt, when asked for
};

/// One body on its way. What it holds in memory is given up when the body was parsed, and again at the end or when a step
/// throws: on the thread that runs the steps.
class Preparation {
 public:
  /// tenant_salt: goes before the requests' own cache_salt; empty where tenants share. Refers to all but the body.
  Preparation(Model& model, const ServedNames& names, Endpoint endpoint, std::string body,
              std::string_view tenant_salt);

  /// The first parses the body. Each of the others tokenizes a chat, or prompts until there were kStepBytes of them. Returns true
  /// if it was the last; none may follow it, nor one that throws. Throws ApiError.
  bool step();
  /// REQUIRES: step() returned true.
  Prepared take() { return std::move(*prepared_); }

 private:
  static constexpr std::size_t kStepBytes = std::size_t{16} << 10;  ///< some 5,000 tokens of English

  void parse();
  bool tokenize();
  void add(std::vector<kv::Token> tokens, const char* field);

  Model& model_;
  const ServedNames& names_;
  Endpoint endpoint_;
  std::string body_;  ///< empty once it was parsed
  std::size_t body_bytes_;
  std::string_view tenant_salt_;
  std::optional<Prepared> prepared_;  ///< once the body was parsed
  std::shared_ptr<const sampling::SharedParams> shared_;
};

/// All steps at once.
Prepared prepare(Model& model, const ServedNames& names, Endpoint endpoint, std::string_view body,
                 std::string_view tenant_salt = {});

/// POST /tokenize: {"content" | "prompt" | "messages", ...} -> {"tokens", "count", "max_model_len"}.
/// Takes llama-server's fields (content, add_special, parse_special, with_pieces) and vLLM's (prompt or
/// messages, add_special_tokens, return_token_strs). Throws ApiError.
std::string tokenize_reply(const Model& model, std::string_view body);

/// POST /detokenize: {"tokens"} -> {"content", "prompt"}: the same text under both servers' names.
std::string detokenize_reply(const Model& model, std::string_view body);

}  // namespace coppice::server
