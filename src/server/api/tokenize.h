// POST /tokenize, /detokenize, /apply-template and what counts a chat's tokens. All throw RequestError.
#pragma once

#include <string>
#include <string_view>

#include "server/jobs/model.h"

namespace coppice::server {

/// {"content" | "prompt" | "messages", ...} -> {"tokens", "count", "max_model_len"}. Takes llama-server's fields
/// (content, add_special, parse_special, with_pieces) and vLLM's (prompt or messages, add_special_tokens,
/// return_token_strs).
std::string tokenize_reply(const Model& model, std::string_view body);

/// {"messages", ...} -> {"prompt"}: the chat as the model gets it.
std::string template_reply(const Model& model, std::string_view body);

/// {"messages", ...} -> {"object", "input_tokens"}.
std::string count_reply(const Model& model, std::string_view body);

/// vLLM's, for routers that want to know where a prompt is cached. {"messages", ...} -> {"request_id", "model",
/// "token_ids", ...}, the chat as the model gets it; {"prompt", ...} -> a list of such, one of each prompt. Rows of
/// images are tokens 0, as in KV events.
std::string render_chat_reply(const Model& model, std::string_view body);
std::string render_prompts_reply(const Model& model, std::string_view body);

/// {"tokens"} -> {"content", "prompt"}: the same text under both servers' names.
std::string detokenize_reply(const Model& model, std::string_view body);

}  // namespace coppice::server
