// Writes GGUF files for tests: an f32 copy of a quantised file, and tiny random models of the llama family.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace coppice::test {

/// A folder of this process's own, removed at exit.
std::filesystem::path scratch_folder();

/// Copies a GGUF file with every tensor dequantised to f32. Throws std::runtime_error.
void dequantize_gguf(const std::filesystem::path& from, const std::filesystem::path& to);

/// COPPICE_MODEL; throws with the sentence that tells what to run when it isn't there.
std::string model_path();

struct TinyModel {
  std::string architecture = "llama";
  int n_layer = 2;
  int n_embd = 64;
  int n_head = 4;
  int n_kv_head = 2;
  int head_dim = 16;
  int n_ff = 128;
  int n_vocab = 320;
  int context = 512;
  int matrix_type = 0;                          ///< ggml type of the matrices: 0 F32, 2 Q4_0, 3 Q4_1, 8 Q8_0
  std::map<std::string, int> other_types = {};  ///< of all layers' matrices of a name, such as "attn_v"
  bool biases = false;
  bool rope_factors = false;
  bool tied = true;
  std::uint32_t seed = 1;
  std::string leave_out;    ///< a tensor that is missing
  std::string wrong_shape;  ///< a tensor with one column too few
};

/// Writes a random model to `to` and returns it.
std::filesystem::path write_tiny_model(const TinyModel& model, const std::filesystem::path& to);

}  // namespace coppice::test
