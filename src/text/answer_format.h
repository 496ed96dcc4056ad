// AnswerFormat: how a model writes reasoning and calls of tools into its text; AnswerReader reads one such text as it
// comes.
//
// Thread safety: an AnswerFormat is immutable, and any number of readers may use it at once; a reader is not thread
// safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::text {

/// More of a call. Its name comes whole, and before its arguments.
struct CallPart {
  std::size_t index = 0;  ///< of the answer's calls
  std::string id;         ///< with the name, if the model wrote one before the arguments
  std::string name;       ///< empty: it came before
  std::string arguments;  ///< more of the JSON
};

/// What some text brings.
struct AnswerParts {
  std::string content, reasoning;
  std::vector<CallPart> calls;
  bool cut = false;  ///< by finish(): the last call's arguments are no JSON
};

class AnswerFormat {
 public:
  struct Impl;
  explicit AnswerFormat(std::unique_ptr<const Impl> impl);
  ~AnswerFormat();
  AnswerFormat(const AnswerFormat&) = delete;
  AnswerFormat& operator=(const AnswerFormat&) = delete;

  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
};

/// The library reads a text from its beginning each time. So this looks again when it has grown by a part of itself:
/// reading an answer of n bytes takes n log n, and its last part is held back for a moment. Text that is no valid call
/// stays text.
class AnswerReader {
 public:
  /// `held`: a grammar holds calls, so that their arguments are passed on as they come. Else a call comes whole, once
  /// it is one: its arguments are an object. What isn't is text.
  explicit AnswerReader(std::shared_ptr<const AnswerFormat> format, bool held = true);
  ~AnswerReader();
  AnswerReader(AnswerReader&&) noexcept;

  AnswerParts push(std::string_view text);
  /// The rest. Called once.
  AnswerParts finish();
  std::size_t bytes() const { return text_.size(); }

 private:
  struct Parsed;
  AnswerParts read(bool whole);
  AnswerParts read_behind(AnswerParts&& split, bool whole);
  std::string unread() const;

  std::shared_ptr<const AnswerFormat> format_;
  std::unique_ptr<Parsed> parsed_;
  bool held_;
  std::string text_;
  std::size_t next_ = 1;  ///< bytes at which it is read again
};

}  // namespace coppice::text
