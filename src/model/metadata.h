// Metadata: a GGUF file's settings as a family asks for them: by names to which the architecture's is added, checked.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/gguf_file.h"
#include "model/load_error.h"

namespace coppice::model {

/// Borrows the file. All functions throw LoadError: a value of another type, out of range, or missing where it is
/// required.
class Metadata {
 public:
  explicit Metadata(const GgufFile& file);

  const GgufFile& file() const { return file_; }
  const std::string& architecture() const { return architecture_; }
  /// "embedding_length" -> "llama.embedding_length".
  std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }

  /// min, which is 1, to max.
  int size(std::string_view name, std::int64_t max) const;
  int size(std::string_view name, std::int64_t max, std::int64_t otherwise, int min = 1) const;
  /// Finite.
  float number(std::string_view name) const;
  float number(std::string_view name, float otherwise) const;
  /// As number(), but 0 stands for a value that isn't there.
  float factor(std::string_view name, float otherwise) const;
  bool truth(std::string_view name, bool otherwise) const;
  std::string text(std::string_view name, std::string_view otherwise) const;
  /// A size for each of n layers, from min to max: a list, or one number for all. Required if there is no `otherwise`.
  std::vector<int> sizes(std::string_view name, int n, std::int64_t max, std::optional<std::int64_t> otherwise = {},
                         int min = 1) const;
  /// At least n values, of layers for instance; nullopt: no such list. (The key may be there with a single number.)
  std::optional<std::vector<std::int64_t>> list(std::string_view name, int n) const;

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> why, Args&&... args) const {
    throw LoadError(file_.path() + ": " + fmt::format(why, std::forward<Args>(args)...));
  }

 private:
  int checked(std::string_view name, std::int64_t value, int min, std::int64_t max) const;
  float checked(std::string_view name, double value) const;

  const GgufFile& file_;
  std::string architecture_;
};

}  // namespace coppice::model
