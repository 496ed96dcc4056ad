// Writes GGUF files for tests: an f32 copy of a quantised file, and tiny random models of all families of plain
// decoders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace coppice::test {

/// A folder of this process's own, removed at exit.
std::filesystem::path scratch_folder();

/// Copies a GGUF file with every tensor dequantised to f32. Throws std::runtime_error.
void dequantize_gguf(const std::filesystem::path& from, const std::filesystem::path& to);

/// What this variable of the environment says; throws with the sentence that tells what to run when it isn't there.
std::string model_path(const std::string& variable = "COPPICE_MODEL");

/// The same model with weights in f32: made when it is first asked for, removed with the scratch folder. Throws
/// std::runtime_error.
std::string f32_model_path(const std::string& variable = "COPPICE_MODEL");

enum class TinyQkNorm { kNone, kHeads, kWhole };
enum class TinyGate { kNone, kHeads, kValues };  ///< what a factor of the output gate is for

using TinySetting = std::variant<bool, int, float, std::string, std::vector<bool>, std::vector<int>>;

enum class TinyMixer { kAttention, kShortConv, kDelta, kDeltaOneGates, kMamba2 };

/// The layers that don't attend.
struct TinyRecurrent {
  TinyMixer mixer = TinyMixer::kAttention;
  std::vector<bool> layers = {};
  int n_heads = 4, n_key_heads = 2, key_dim = 16, value_dim = 16;
  int taps = 4;
  bool listed = true;  ///< the file says which layers they are, where it needn't
};

/// Which experts a row takes must not hang on a last bit, so the first values of a token's embedding are large for some
/// experts and small for others; layers add little to them, and each layer's router reads them in another order.
struct TinyExperts {
  int n = 0;  ///< 0: feed-forwards without experts
  int n_used = 2;
  int n_ff = 64;
  int first_layer = 0;  ///< the layers before have plain feed-forwards
  int every = 1;        ///< of so many layers the last one has experts, the others plain feed-forwards
  bool biases = false;
  bool selection_bias = false;
  int shared_ff = 0;         ///< width of the feed-forward beside the experts
  bool shared_gate = false;  ///< its factor
  bool own_norms =
      false;  ///< of experts, router and the feed-forward beside them; gate and up are one tensor (Gemma 4)
};

/// All parameters are random, norms and biases too.
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
  bool biases = false;                          ///< of all matrices of layers
  bool qkv_biases = false;                      ///< of queries, keys and values only
  bool output_bias = false;
  bool rope_factors = false;    ///< rope_freqs
  float rope_factor = 1.5F;     ///< about so much each
  bool long_and_short = false;  ///< rope_factors_long and rope_factors_short
  int rope_dims = 0;            ///< 0: the whole head
  TinyQkNorm qk_norm = TinyQkNorm::kNone;
  bool norms_before = true, norms_behind = false;
  std::string feed_forward_norm = "ffn_norm";
  float norm_spread = 0.1F;
  /// Of the matrices that make queries and keys. Sharp attention multiplies what rounding keys costs, layer by layer.
  float qk_spread = 0.3F;
  /// Which layers slide; these may have other heads. Empty: the file says nothing of it, unless `settings` do.
  std::vector<bool> slides = {};
  int sliding_kv_heads = 0, sliding_head_dim = 0;
  bool values_are_keys = false;  ///< in layers that don't slide: they lack the matrix of values
  int shared_kv = 0;     ///< so many of the last layers have no keys and values; their feed-forwards are twice as wide
  int token_inputs = 0;  ///< width of the embeddings that tokens have for each layer
  bool layer_scales = false;
  TinyGate gate = TinyGate::kNone;
  bool sinks = false;
  bool fused_qkv = false;   ///< queries, keys and values are one matrix
  bool fused_gate = false;  ///< gate and up are one matrix
  bool tied = true;
  TinyExperts experts = {};
  TinyRecurrent recurrent = {};
  bool gate_in_q = false;  ///< the matrix of queries gives gates, too
  std::string output_norm = "output_norm";
  std::map<std::string, TinySetting> settings = {};  ///< more metadata; keys lack the architecture's name
  std::uint32_t seed = 1;
  std::string leave_out;    ///< a tensor that is missing
  std::string wrong_shape;  ///< a tensor with one column too few
};

/// Writes a random model to `to` and returns it.
std::filesystem::path write_tiny_model(const TinyModel& model, const std::filesystem::path& to);

}  // namespace coppice::test
