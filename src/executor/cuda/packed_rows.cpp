#include "executor/cuda/packed_rows.h"

#include <ggml.h>

#include <cstring>
#include <span>

#include "executor/cuda/bf16.h"

namespace coppice::executor::cuda {

namespace {

using matmul::QuantType;

/// n numbers of whole blocks of the tensor's type, from `bytes` on.
std::vector<float> numbers(const model::TensorInfo& tensor, const std::byte* bytes, std::size_t n) {
  std::vector<float> to(n);
  const auto type = static_cast<ggml_type>(tensor.type);
  if (type == GGML_TYPE_F32) {
    std::memcpy(to.data(), bytes, n * sizeof(float));
  } else {
    ggml_get_type_traits(type)->to_float(bytes, to.data(), static_cast<std::int64_t>(n));
  }
  return to;
}

/// Outputs of a matrix as pack() takes them: the file's own bytes, or what they become.
class FileRows {
 public:
  FileRows(const model::GgufFile& file, const model::TensorInfo& tensor, std::int64_t matrix, std::int64_t first,
           std::int64_t n) {
    const auto n_in = static_cast<std::size_t>(tensor.shape[0]), n_rows = static_cast<std::size_t>(n);
    const std::size_t row_bytes = ggml_row_size(static_cast<ggml_type>(tensor.type), tensor.shape[0]);
    const std::size_t of_matrix =
        tensor.stride > 0 ? tensor.stride : static_cast<std::size_t>(tensor.shape[1]) * row_bytes;
    bytes_ = file.tensor_bytes(tensor).subspan(
        static_cast<std::size_t>(matrix) * of_matrix + static_cast<std::size_t>(first) * row_bytes, n_rows * row_bytes);
    if (packed_type(tensor) != QuantType::kBf16 || static_cast<ggml_type>(tensor.type) == GGML_TYPE_BF16) return;
    rounded_.reserve(n_in * n_rows);
    for (std::size_t row = 0; row < n_rows; ++row) {
      for (const float x : numbers(tensor, bytes_.data() + row * row_bytes, n_in)) rounded_.push_back(to_bf16(x));
    }
    bytes_ = std::as_bytes(std::span(rounded_));
  }
  FileRows(const FileRows&) = delete;  // bytes() may point into it
  FileRows& operator=(const FileRows&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::uint16_t> rounded_;
  std::span<const std::byte> bytes_;
};

}  // namespace

QuantType packed_type(const model::TensorInfo& tensor) {
  switch (static_cast<ggml_type>(tensor.type)) {
    case GGML_TYPE_Q4_0:
      return QuantType::kQ4_0;
    case GGML_TYPE_Q8_0:
      return QuantType::kQ8_0;
    case GGML_TYPE_Q4_K:
      return QuantType::kQ4K;
    case GGML_TYPE_Q5_K:
      return QuantType::kQ5K;
    case GGML_TYPE_Q6_K:
      return QuantType::kQ6K;
    case GGML_TYPE_MXFP4:
      return QuantType::kMxfp4;
    default:
      return QuantType::kBf16;
  }
}

std::size_t packed_bytes(QuantType type, std::int64_t n_in, std::int64_t n_out) {
  const matmul::cuda::ChunkForm form = matmul::cuda::chunk_form(type);
  const std::int64_t n_tiles = (n_out + matmul::cuda::kTileOutputs - 1) / matmul::cuda::kTileOutputs;
  return static_cast<std::size_t>(n_tiles * (n_in / form.inputs) * form.bytes());
}

std::vector<std::byte> pack_rows(const model::GgufFile& file, const model::TensorInfo& tensor, std::int64_t matrix,
                                 std::int64_t first, std::int64_t n) {
  const FileRows rows(file, tensor, matrix, first, n);
  return matmul::cuda::pack(packed_type(tensor), static_cast<int>(tensor.shape[0]), static_cast<int>(n), rows.bytes());
}

std::vector<std::byte> pack_pair_rows(const model::GgufFile& file, const model::TensorInfo& gate,
                                      const model::TensorInfo& up, std::int64_t first, std::int64_t n) {
  const FileRows gates(file, gate, 0, first, n), ups(file, up, 0, first, n);
  return matmul::cuda::pack_pairs(packed_type(gate), static_cast<int>(gate.shape[0]), static_cast<int>(n),
                                  gates.bytes(), ups.bytes());
}

std::vector<float> plain_numbers(const model::GgufFile& file, const model::TensorInfo& tensor) {
  std::size_t n = 1;
  for (const std::int64_t size : tensor.shape) n *= static_cast<std::size_t>(size);
  return numbers(tensor, file.tensor_bytes(tensor).data(), n);
}

}  // namespace coppice::executor::cuda
