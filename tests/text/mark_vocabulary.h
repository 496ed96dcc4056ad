// A vocabulary of bytes in which the marks of a chat template are control tokens, as in the model that the template is
// made for.
#pragma once

#include <fmt/format.h>
#include <gguf.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "text/vocabulary.h"

namespace coppice::test {

/// The literals of a grammar in GBNF that have more than a letter.
inline std::set<std::string> words_of(const std::string& grammar) {
  static const std::regex literal(R"re("((?:[^"\\\n]|\\.)+)")re");
  std::set<std::string> words;
  for (auto it = std::sregex_iterator(grammar.begin(), grammar.end(), literal); it != std::sregex_iterator(); ++it) {
    std::string text;
    for (std::size_t i = 0; i < it->str(1).size(); ++i) {
      char c = it->str(1)[i];
      if (c == '\\') c = it->str(1)[++i] == 'n' ? '\n' : it->str(1)[i];
      text += c;
    }
    if (text.size() > 1) words.insert(text);
  }
  return words;
}

/// What in a template looks like the name of a token.
inline std::set<std::string> marks_in(const std::string& source) {
  static const std::regex mark(
      "(<\\|[^\\s|<>{}'\"]{1,40}\\|?>|<\\xef\\xbd\\x9c[^\\s<>{}'\"]{1,60}\\xef\\xbd\\x9c>|"
      "</?[a-z_:]{3,24}(\\|?>)|\\[/?[A-Z_]{4,24}\\]|<\\|\"\\|>)");
  std::set<std::string> marks;
  for (auto it = std::sregex_iterator(source.begin(), source.end(), mark); it != std::sregex_iterator(); ++it)
    marks.insert(it->str());
  return marks;
}

/// `words`: tokens with a text.
inline std::shared_ptr<const text::Vocabulary> mark_vocabulary(const std::set<std::string>& marks,
                                                               const std::set<std::string>& words = {}) {
  enum : std::int32_t { kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };
  std::vector<std::string> names = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types = {kUnknown, kControl, kControl};
  for (int byte = 0; byte < 256; ++byte) {
    names.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(kByte);
  }
  for (const std::string& mark : marks) {
    names.push_back(mark);
    types.push_back(kControl);
  }
  for (const std::string& word : words) {
    if (marks.contains(word)) continue;
    names.push_back(word);
    types.push_back(kUserDefined);
  }
  std::vector<const char*> texts;
  for (const std::string& name : names) texts.push_back(name.c_str());
  const std::vector<float> scores(names.size(), 0.0F);
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(gguf_init_empty(), gguf_free);
  gguf_set_val_str(file.get(), "general.architecture", "llama");
  gguf_set_val_str(file.get(), "tokenizer.ggml.model", "llama");
  gguf_set_val_bool(file.get(), "tokenizer.ggml.add_space_prefix", false);
  gguf_set_arr_str(file.get(), "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(file.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
  gguf_set_arr_data(file.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  const auto path = std::filesystem::temp_directory_path() / fmt::format("coppice-marks-{}.gguf", getpid());
  if (!gguf_write_to_file(file.get(), path.c_str(), false)) throw std::runtime_error("cannot write " + path.string());
  auto vocabulary = std::make_shared<const text::Vocabulary>(path);
  std::filesystem::remove(path);
  return vocabulary;
}

}  // namespace coppice::test
