// GgufFile: a GGUF file, memory-mapped: its metadata, its tensor table, and the bytes of its tensors.
//
// Owns the mapping. Immutable once a family has read it (split()), so any thread may read it. The parser is our own because
// ggml's aborts the process on some damaged files (an empty key, an alignment that is no power of two). This one throws
// LoadError.
//
// Invariants
//  1. Every tensor's bytes [offset, offset + bytes) lie inside the file.
//  2. Tensor names are unique; shapes have 1 to 4 dimensions, each at least 1; a row is whole quantisation blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/mapped_file.h"

namespace coppice::model {

/// Type numbers are the file format's (and ggml's: the same by definition).
struct TensorInfo {
  std::string name;
  std::int32_t type = 0;
  std::vector<std::int64_t> shape;  ///< fastest dimension first
  std::size_t offset = 0;           ///< from the start of the file
  std::size_t bytes = 0;
};

/// An array. Whole numbers and truth values are kept as far as they can be settings of layers: up to kMostKept of them.
struct GgufArray {
  static constexpr std::uint64_t kMostKept = 4096;
  std::vector<std::int64_t> elements;
};

using GgufValue = std::variant<bool, std::int64_t, double, std::string, GgufArray>;

class GgufFile {
 public:
  /// Maps and parses. Throws LoadError: no GGUF file, unknown version, truncated, damaged.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::size_t size() const { return file_.bytes().size(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  std::span<const std::byte> metadata_bytes() const { return bytes().first(metadata_end_); }
  const MappedFile& mapping() const { return file_; }

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Index into tensors(), or -1.
  int find(std::string_view name) const;
  /// Cuts a tensor along its slowest dimension into parts of these sizes: it becomes the first one under its own name, the
  /// others go to the table's end, where find() does not look. Returns all of them. REQUIRES: the sizes are positive and sum up
  /// to the dimension; tensors of one dimension have no quantisation blocks.
  std::vector<int> split(int tensor, std::span<const std::int64_t> sizes);
  std::span<const std::byte> tensor_bytes(const TensorInfo& tensor) const {
    return bytes().subspan(tensor.offset, tensor.bytes);
  }

  // Metadata. A key of another type than asked for is a LoadError, never a guess.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> real(std::string_view key) const;
  std::optional<bool> truth(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;  ///< also an array of truth values
  bool is_array(std::string_view key) const;
  std::int64_t require_integer(std::string_view key) const;
  double require_real(std::string_view key) const;

 private:
  class Reader;
  void parse();
  void parse_tensors(Reader& in, std::uint64_t count);
  const GgufValue* value(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, std::string_view wanted) const;

  std::string path_;
  MappedFile file_;
  std::size_t metadata_end_ = 0;  ///< header, keys and tensor table are [0, metadata_end_)
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, int, std::less<>> index_;
};

/// The type's name as people know it ("Q4_1"), or "type 99".
std::string tensor_type_name(std::int32_t type);

}  // namespace coppice::model
