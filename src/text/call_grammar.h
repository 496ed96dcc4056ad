// The grammar of calls: what a model may write that must call a tool, or has begun to. It is made from the parser that
// will read the answer (llama.cpp's PEG arena), part by part, so that whatever the grammar allows is read as a call.
// The library makes a grammar of the parser, too, but one that lets any text stand before a call and holds no schemas.
//
// What the parser's tags mean here: "content" is left out; "reasoning" may come once; each tool's arguments are held to
// its schema (ToolSpec::held), as JSON or one by one, each once, the required ones always.
//
// For this folder's .cpp files. Functions without state.
#pragma once

#include <peg-parser.h>

#include <functional>
#include <map>
#include <span>
#include <string>

#include "text/gbnf_text.h"
#include "text/tool_chat.h"

namespace coppice::text {

struct CallGrammar {
  std::string text;                            ///< GBNF; empty: the parser knows no calls
  std::map<std::string, std::string> schemas;  ///< rules that stand for JSON of a schema
  std::map<std::string, kv::Token> tokens;     ///< rules that are one token without a text: a mark
  std::map<std::string, BareText> bare;        ///< rules that stand for strings as they are
  bool spaced = false;                         ///< ToolPrompt::spaced
};

/// `parser`: of an answer with calls of these tools. `whole`: of all of the answer, in which a call must come; else
/// only of what a call begins with and all behind it. `parallel`: several calls may come. `marks`: names of tokens
/// without a text. `beside`: adds rules for what may come in place of calls, and returns their body; null: nothing may.
CallGrammar call_grammar(const common_peg_arena& parser, std::span<const ToolSpec> tools, bool whole, bool parallel,
                         const SpecialNames& marks, const std::function<std::string(GbnfRules&)>& beside = {});

}  // namespace coppice::text
