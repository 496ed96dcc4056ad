// From a prompt's text, or a chat, to tokens. What cannot fit into the context is refused as early as possible.
//
// Each throws RequestError (400). `field`: what the client calls the text.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/text.h"
#include "kv/types.h"
#include "server/jobs/generation_request.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// Refuses more tokens than the context holds. Of what is only asked about, not generated from: it leaves no room for
/// an answer.
void check_count(const ModelFacts& facts, std::size_t count, const std::string& field);

/// Refuses a prompt without tokens, or one that doesn't fit, or leaves no room for an answer where one is wanted. As
/// the engine does (Scheduler::objection()).
void check_prompt(const ModelFacts& facts, kv::TextView prompt, const std::string& field, bool answers);

/// How many contexts long a text may be: of what is only counted, as long as a body can be.
inline constexpr int kAnyLength = 0;

/// Contexts that a prompt which doesn't fit is counted up to.
inline constexpr int kCountedContexts = 4;

/// The chat as the model's template has it. `times`: 1 or kAnyLength.
text::ToolPrompt chat_text(const Model& model, std::vector<Message> messages, text::TurnEnd end, const Tools& tools,
                           const std::string& field, int times = 1);

/// `tokenize`: called with the most tokens that are wanted, as Model::tokenize(). `times`: so many contexts long the
/// text may be, or kAnyLength. What is a little too long is counted all the same, since clients want to know by how
/// much.
std::vector<kv::Token> text_tokens(const ModelFacts& facts, std::string_view text, const std::string& field,
                                   const std::function<std::vector<kv::Token>(std::size_t)>& tokenize, int times = 1);

/// Of a part of a prompt, the first one or not, as Model::tokenize().
using Tokenize = std::function<std::vector<kv::Token>(const text::MarkedView& part, bool first, std::size_t most)>;

/// A chat's text, or another, with the symbols of pictures in place of their markers: what stands between two is
/// tokenized by itself, as libmtmd does. Too many symbols may be left at another place. REQUIRES: pictures.looked().
kv::Text prompt_symbols(const ModelFacts& facts, const text::MarkedView& text, const PromptPictures& pictures,
                        const std::string& field, const Tokenize& tokenize, int times = 1);

/// All of a chat, to be counted. It decodes its pictures, and encodes none. Throws MissingPictures and
/// vision::NotDecoded, too.
kv::Text chat_symbols(const Model& model, std::vector<Message> messages, text::TurnEnd end, const Tools& tools,
                      const std::string& field, int times = 1);

}  // namespace coppice::server
