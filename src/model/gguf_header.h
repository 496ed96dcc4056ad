// read_gguf_header: what a GGUF file says of itself before its tensors' bytes: metadata and tensor table.
//
// The parser is our own because ggml's aborts the process on some damaged files (an empty key, an alignment that is no
// power of two). This one never reads beyond the bytes that it is given, takes memory only for what it has found in
// them, and throws LoadError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace coppice::model {

/// Type numbers are the file format's (and ggml's: the same by definition).
struct TensorInfo {
  std::string name;
  std::int32_t type = 0;
  std::vector<std::int64_t> shape;  ///< fastest dimension first
  int file = 0;                     ///< the file that holds it, where a model is split into several
  std::size_t offset = 0;           ///< from the start of that file
  std::size_t bytes = 0;
  /// Bytes from one matrix of several to the next, where others lie between; 0: they are contiguous.
  std::size_t stride = 0;
};

/// An array. Whole numbers and truth values are kept as far as they can be settings of layers: up to kMostKept of them.
struct GgufArray {
  static constexpr std::uint64_t kMostKept = 4096;
  std::vector<std::int64_t> elements;
};

/// A text lies in the file's bytes.
using GgufValue = std::variant<bool, std::int64_t, double, std::string_view, GgufArray>;

/// Tensors' bytes [offset, offset + bytes) lie inside the file. Names are unique; shapes have 1 to 4 dimensions, each
/// at least 1; a row is whole quantisation blocks.
struct GgufHeader {
  std::size_t size = 0;  ///< header, keys and tensor table are the file's first bytes
  std::map<std::string, GgufValue, std::less<>> values;
  std::vector<TensorInfo> tensors;
};

/// `path` is for the error's sentence. Throws LoadError: no GGUF file, unknown version, truncated, damaged. The bytes
/// must outlive the header.
GgufHeader read_gguf_header(std::span<const std::byte> bytes, const std::string& path);

/// The type's name as people know it ("Q4_1"), or "type 99".
std::string tensor_type_name(std::int32_t type);

/// Whether tensors of the type hold numbers to compute with: not indices, and none of the forms that only ggml's
/// kernels use.
bool holds_weights(std::int32_t type);

}  // namespace coppice::model
