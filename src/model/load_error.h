// LoadError: a model that can't be loaded.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

namespace coppice::model {

/// what() is one sentence on one line for the person who started the program. It may quote a damaged file: control
/// characters become '?', and what is too long is cut.
class LoadError : public std::runtime_error {
 public:
  explicit LoadError(std::string sentence) : std::runtime_error(cleaned(std::move(sentence))) {}

 private:
  static std::string cleaned(std::string sentence) {
    constexpr std::size_t kLongest = 4096;
    if (sentence.size() > kLongest) sentence.replace(kLongest, std::string::npos, "...");
    std::ranges::replace_if(sentence, [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; }, '?');
    return sentence;
  }
};

}  // namespace coppice::model
