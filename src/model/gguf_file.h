// GgufFile: a model in GGUF, memory-mapped: its metadata, its tensor table, and the bytes of its tensors. A model may
// be split into several files, named NAME-00001-of-00003.gguf and so on; the first one has the metadata.
//
// Owns the mappings. Immutable once a family has read it (split()), so any thread may read it.
//
// Invariants
//  1. Every tensor's bytes [offset, offset + bytes) lie inside its part.
//  2. Tensor names are unique; shapes have 1 to 4 dimensions, each at least 1; a row is whole quantisation blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf_header.h"
#include "model/mapped_file.h"

namespace coppice::model {

/// A file that a model was read from.
struct ModelPart {
  std::string path;
  FileIdentity identity;
};

class GgufFile {
 public:
  /// Maps and parses; `path` is the first part of a split model. Throws LoadError: no GGUF file, unknown version,
  /// truncated, damaged; a part that is missing, another one, or another model's.
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// The file's name without its ending and its part's number.
  std::string name() const;
  /// Bytes of all parts.
  std::size_t size() const;
  /// The files, in their order.
  std::vector<ModelPart> files() const;
  /// Whether one of them was written since it was mapped. One that was moved or replaced wasn't: what is mapped stays.
  bool was_written() const;
  int parts() const { return static_cast<int>(parts_.size()); }
  std::span<const std::byte> bytes(int part) const { return at(part).file.bytes(); }
  std::span<const std::byte> metadata_bytes(int part) const { return bytes(part).first(at(part).metadata_end); }
  /// Gives a tensor's memory back; it is read from the file again when it is touched again.
  void let_go(const TensorInfo& tensor) const { at(tensor.file).file.let_go(tensor.offset, tensor.bytes); }

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Index into tensors(), or -1.
  int find(std::string_view name) const;
  /// Cuts a tensor along its slowest dimension, or each matrix of one with three, into parts of these sizes: it becomes
  /// the first one under its own name, the others go to the table's end, where find() does not look. Returns all of
  /// them. REQUIRES: the sizes are positive and sum up to the dimension; tensors of one dimension have no quantisation
  /// blocks.
  std::vector<int> split(int tensor, std::span<const std::int64_t> sizes);
  std::span<const std::byte> tensor_bytes(const TensorInfo& tensor) const {
    return bytes(tensor.file).subspan(tensor.offset, tensor.bytes);
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
  struct ModelFile {
    explicit ModelFile(const std::string& name) : path(name), file(name) {}
    std::string path;
    MappedFile file;
    std::size_t metadata_end = 0;  ///< header, keys and tensor table are [0, metadata_end)
  };

  const ModelFile& at(int part) const { return parts_[static_cast<std::size_t>(part)]; }
  GgufHeader open_part(const std::string& path);
  void open_other_parts(std::int64_t count, std::int64_t n_tensors);
  void take_tensors(std::vector<TensorInfo> tensors);
  const GgufValue* value(std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view key, std::string_view wanted) const;

  std::string path_;
  std::deque<ModelFile> parts_;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, int, std::less<>> index_;
};

}  // namespace coppice::model
