# llama.cpp's chat library also writes a grammar of calls from tools' schemas. coppice writes its own, and the library's takes a time
# that clients choose: 4 s for a tool with 1,000 optional properties, minutes and all of the stack for 70,000. So it can be switched off.
mend_common(json-schema-to-grammar.h [=[std::string build_grammar(]=] [=[// False: build_grammar() looks at nothing and returns "". To be set before there is a second thread.
extern bool common_builds_grammars;

std::string build_grammar(]=] "grammars of calls can be switched off")
mend_common(json-schema-to-grammar.cpp [=[std::string build_grammar(const std::function<void(const common_grammar_builder &)> & cb, const common_grammar_options & options) {]=]
  [=[bool common_builds_grammars = true;

std::string build_grammar(const std::function<void(const common_grammar_builder &)> & cb, const common_grammar_options & options) {
    if (!common_builds_grammars) {
        return "";
    }]=] "grammars of calls can be switched off")
