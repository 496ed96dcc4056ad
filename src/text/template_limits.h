// What a chat template may take. It comes with a model's file: a text from elsewhere, and a program.
//
// llama.cpp's interpreter of templates bounds nothing by itself. cmake/llama/jinja.cmake makes it count its work here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace coppice::text {

/// docs/operations.md names them. Templates that people use take at most 21 KB, 14 blocks, 57 parts, 35 MiB of work at
/// load.
struct TemplateLimits {
  static constexpr std::size_t kSource = std::size_t{256} << 10U;  ///< bytes
  static constexpr int kBlocks = 200;   ///< statements inside each other; each branch of an `if` is one more
  static constexpr int kBrackets = 64;  ///< inside each other
  static constexpr int kParts = 1000;   ///< of an expression, without a comma between them
  static constexpr std::size_t kStack = std::size_t{1} << 20U;         ///< bytes of calls inside each other
  static constexpr std::size_t kWorkAtLoad = std::size_t{256} << 20U;  ///< bytes of texts and values, all that are made
  static constexpr std::size_t kWork = std::size_t{256} << 20U;        ///< the same at a request, and ...
  static constexpr std::size_t kWorkPerByte = 4000;                    ///< ... so many more for each byte of the chat
  /// By which the process may grow while any render, and so many more for each byte of their chats.
  static constexpr std::size_t kMemory = std::size_t{512} << 20U;
  static constexpr std::size_t kMemoryPerByte = 64;
  static constexpr std::chrono::seconds kTime{5};  ///< of the thread's own time
};

/// Throws TemplateError where a template is too large or nested too deeply to be parsed, and jinja's own errors. To be
/// asked before a parser sees it.
void check_template(const std::string& source);

/// While it lives, templates that this thread runs take no more than the limits. They end with an error then. Whatever
/// a library makes of that, from then on all end so. Several may live at once, of as many threads: they share kMemory,
/// and where that is not enough the one ends that has made most. Between two steps others have their turns
/// (port/turn.h). Thread safety: each belongs to the thread that made it. REQUIRES: the thread has no other.
class TemplateWork {
 public:
  enum class At : std::uint8_t { kLoad, kRequest };

  /// `input_bytes`: of what the template is given.
  explicit TemplateWork(At at, std::size_t input_bytes = 0);
  ~TemplateWork();
  TemplateWork(const TemplateWork&) = delete;
  TemplateWork& operator=(const TemplateWork&) = delete;

  /// The limit that was met; null: none.
  const char* ended() const { return ended_; }
  /// Throws TemplateError if there is one.
  void check() const;

 private:
  static void take(std::size_t bytes);
  void add(std::size_t bytes);
  bool has_most_of_too_much();
  [[noreturn]] void end(const char* reason);

  static thread_local TemplateWork* current;
  static const bool kInstalled;

  const std::size_t most_, input_;   ///< bytes
  std::size_t left_, unlooked_ = 0;  ///< bytes
  std::size_t made_ = 0;             ///< bytes; the others read it
  const char* base_;                 ///< where the stack was
  std::chrono::nanoseconds until_;
  const char* ended_ = nullptr;
};

}  // namespace coppice::text
