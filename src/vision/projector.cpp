// A new family of projectors: libmtmd reads it, and knows its tiles, tokens and encoder (cmake/llama/mtmd.cmake mends
// some encoders); its text model is a family of model/families.cpp. What libmtmd can't compare is checked here:
// row_size(), how wide a row is, with its planes (ModelSpec::n_planes). Where a picture's rows stand and what they see
// is asked of libmtmd: grids(), parts(). Tests: tests/vision; a row in docs/models.md.
#include "vision/projector.h"

#include <fmt/format.h>
#include <mtmd.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "kv/digest.h"
#include "model/cpu_device.h"
#include "model/gguf_file.h"
#include "model/load_error.h"
#include "model/metadata.h"
#include "text/llama_log.h"
#include "text/vocabulary.h"

namespace coppice::vision {
namespace {

using model::LoadError;

/// With the planes of DeepStack, one from each encoder layer that says so.
int row_size(const model::Metadata& m) {
  const int n_layers = m.size("vision.block_count", 1 << 12);
  const auto stacked = m.list("vision.is_deepstack_layers", n_layers);
  const auto planes = stacked ? std::ranges::count(*stacked, 1) : 0;
  return m.size("vision.projection_dim", 1 << 20) * (1 + static_cast<int>(planes));
}

/// What the file says of itself is compared with the model: libmtmd can't, as it is given a model that has no more than
/// a vocabulary.
kv::Digest checked_digest(const std::filesystem::path& path, int embedding_size, const ProjectorOptions& options) {
  const model::GgufFile file(path.string());
  const model::Metadata metadata(file);
  if (metadata.architecture() != "clip")
    metadata.refuse("is a model of the architecture '{}', and no projector (mmproj)", metadata.architecture());
  if (!metadata.truth("has_vision_encoder", false)) metadata.refuse("is a projector for no pictures");
  if (file.parts() != 1) metadata.refuse("is a projector in several files");
  const int width = row_size(metadata);
  if (width != embedding_size) {
    metadata.refuse("is another model's projector: its rows have {} values, and the model's have {}", width,
                    embedding_size);
  }
  struct Named {
    kv::Digest file;
    std::int32_t min_rows, max_rows;
  };
  const Named named[] = {{kv::sha256(file.bytes(0)), options.min_rows.value_or(-1), options.max_rows.value_or(-1)}};
  return kv::sha256(std::as_bytes(std::span(named)));
}

void log(ggml_log_level level, const char* text, void* /*data*/) {
  text::pass_llama_log(level, text);
}

/// The last row of a grid stands in its last column.
int columns_of(const mtmd_input_chunk* chunk) {
  const std::size_t n = mtmd_input_chunk_get_n_tokens(chunk);
  return static_cast<int>(mtmd_image_tokens_get_decoder_pos(mtmd_input_chunk_get_tokens_image(chunk), 0, n - 1).x) + 1;
}

/// libmtmd takes what is thrown in it for itself, and says no more than a line in its log: want of memory is no fault
/// of a picture.
void throw_if_no_memory(const text::LlamaErrorCapture& errors) {
  if (errors.reason("").find("bad_alloc") != std::string::npos) throw std::bad_alloc();
}

struct FreeChunks {
  void operator()(mtmd_input_chunks* chunks) const { mtmd_input_chunks_free(chunks); }
};

}  // namespace

void Projector::Free::operator()(mtmd_context* context) const {
  mtmd_free(context);
}

Projector::Projector(const std::filesystem::path& file, const text::Vocabulary& vocabulary, int embedding_size,
                     const ProjectorOptions& options)
    : threads_(options.n_threads),
      embedding_size_(embedding_size),
      digest_(checked_digest(file, embedding_size, options)) {
  text::route_llama_log();
  mtmd_log_set(log, nullptr);
  model::cpu_device();  // on a GPU the executor loads no kernels of the CPU
  mtmd_context_params params = mtmd_context_params_default();
  params.use_gpu = false;
  params.print_timings = false;
  params.n_threads = options.n_threads;
  params.warmup = false;
  if (options.min_rows) params.image_min_tokens = *options.min_rows;
  if (options.max_rows) params.image_max_tokens = *options.max_rows;
  const text::LlamaErrorCapture errors;
  context_.reset(mtmd_init_from_file(file.c_str(), vocabulary.model(), params));
  if (!context_) throw LoadError(fmt::format("{}: {}", file.string(), errors.reason("cannot be read as a projector")));
  // Rows of another family may be as long. Then it wants tokens around a picture, a small one too, that are not in this
  // vocabulary.
  if (!layout(64, 32)) {
    throw LoadError(fmt::format("{}: is another model's projector: a picture can't be placed in this model's prompts",
                                file.string()));
  }
}

Projector::~Projector() = default;

bool Projector::grids() const {
  return mtmd_decode_use_mrope(context_.get());
}

std::optional<Parts> Projector::prepare(const image::Pixels& pixels) const {
  return parts(pixels.width, pixels.height, pixels.rgb.data());
}

std::optional<Parts> Projector::layout(std::uint32_t width, std::uint32_t height) const {
  return parts(width, height, nullptr);
}

std::optional<Parts> Projector::parts(std::uint32_t width, std::uint32_t height, const std::uint8_t* rgb) const {
  const mtmd::bitmap bitmap(mtmd_bitmap_init(width, height, rgb));
  const mtmd_input_part part{.text = nullptr, .bitmap = bitmap.ptr.get()};
  const mtmd_input_part* parts[] = {&part};
  const std::shared_ptr<mtmd_input_chunks> chunks(mtmd_input_chunks_init(), FreeChunks());
  const text::LlamaErrorCapture errors;
  if (mtmd_tokenize_from_parts(context_.get(), chunks.get(), parts, 1, false) != 0) {
    throw_if_no_memory(errors);
    return std::nullopt;
  }
  Parts prepared;
  for (std::size_t i = 0; i < mtmd_input_chunks_size(chunks.get()); ++i) {
    const mtmd_input_chunk* chunk = mtmd_input_chunks_get(chunks.get(), i);
    if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
      std::size_t n = 0;
      const llama_token* tokens = mtmd_input_chunk_get_tokens_text(chunk, &n);
      prepared.emplace_back(std::vector<kv::Token>(tokens, tokens + n));
      continue;
    }
    prepared.emplace_back(Stretch{.chunk = {chunks, chunk},  // libmtmd's copy leaks where memory is short
                                  .n_rows = static_cast<int>(mtmd_input_chunk_get_n_tokens(chunk)),
                                  .columns = grids() ? columns_of(chunk) : 0,
                                  .whole = mtmd_decode_use_non_causal(context_.get(), chunk)});
  }
  return prepared;
}

std::optional<std::vector<float>> Projector::encode(const Stretch& stretch, const std::function<bool()>& stop) {
  int status = 1;
  bool stopped = false;
  const text::LlamaErrorCapture errors;
  threads_.run([&] { status = mtmd_encode_chunk(context_.get(), stretch.chunk.get()); },
               [&] { return stopped = stopped || stop(); });
  if (status != 0 && stopped) return std::nullopt;
  if (status != 0) {
    throw_if_no_memory(errors);
    throw std::runtime_error("the projector failed: " + errors.reason("it says no reason"));
  }
  const float* rows = mtmd_get_output_embd(context_.get());
  return std::vector<float>(
      rows, rows + static_cast<std::size_t>(stretch.n_rows) * static_cast<std::size_t>(embedding_size_));
}

}  // namespace coppice::vision
