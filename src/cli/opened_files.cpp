#include "cli/opened_files.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "cli/serve_options.h"
#include "cli/size_text.h"
#include "model/load_error.h"
#include "port/memory.h"
#include "port/processors.h"
#include "port/threads_beside.h"
#include "server/api/base/json.h"

namespace coppice::cli {

namespace {

/// A pipe that nobody writes to would never end, nor a device.
std::string read_file(const std::string& path) {
  if (path.empty()) return "";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw std::runtime_error(fmt::format("Cannot read '{}': {}.", path, error ? error.message() : "it is no file"));
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.empty()) throw std::runtime_error(fmt::format("'{}' is empty, or can't be read.", path));
  return text;
}

/// What the template is told where requests say nothing.
text::ChatDefaults chat_defaults(const ServeOptions& o) {
  text::ChatDefaults defaults{.thinks = o.reasoning != "off", .names_in_content = o.names_in_content};
  if (o.chat_variables.empty()) return defaults;
  for (const auto& [name, value] : boost::json::parse(o.chat_variables).as_object())
    defaults.variables[name] = server::dump(value);
  if (const auto thinks = defaults.variables.find("enable_thinking"); thinks != defaults.variables.end())
    defaults.thinks = thinks->second != "false";
  return defaults;
}

/// Checks what can be checked before anything large is allocated, and fills in the pool's size.
void settle_memory(ServeOptions& o, std::size_t file_bytes) {
  const std::size_t free = port::free_memory();
  if (o.ggml.kv_bytes == 0) {
    if (free == 0) throw std::runtime_error("Cannot tell how much memory is free: choose --kv-bytes.");
    o.ggml.kv_bytes = free / 4;
  }
  if (free > 0 && (file_bytes > free || o.ggml.kv_bytes > free - file_bytes))
    throw std::runtime_error(
        fmt::format("Too little memory: the KV pool ({}) and the model ({}) do not fit into the {} that are free; "
                    "lower --kv-bytes.",
                    size_text(o.ggml.kv_bytes), size_text(file_bytes), size_text(free)));
}

/// An agent shows all of its screenshots with each turn, some MiB of rows each: what doesn't find room is encoded again
/// every time.
std::size_t room_for_rows(const ServeOptions& o) {
  constexpr std::size_t kLeast = std::size_t{256} << 20, kPart = 16;
  return o.image_cache.value_or(std::max(kLeast, port::free_memory() / kPart));
}

/// One that lies beside the model and doesn't fit is left there.
std::unique_ptr<vision::Pictures> open_projector(ServeOptions& o, const Opened& opened) {
  const bool chosen = !o.mmproj.empty();
  const std::string& file = chosen ? o.mmproj : o.found_mmproj;
  if (file.empty()) return nullptr;
  try {
    vision::ProjectorOptions options = o.projector;
    const int n_threads = o.ggml.n_threads > 0 ? o.ggml.n_threads : port::find_processors().threads();
    o.pictures.row_bytes = room_for_rows(o);
    options.n_threads = opened.device.is_gpu() ? std::max(1, n_threads - 1) : n_threads;  // one talks to the GPU
    auto pictures = std::make_unique<vision::Pictures>(
        std::make_unique<vision::Projector>(file, *opened.vocabulary, opened.model.spec.embedding_size(), options),
        o.pictures);
    if (pictures->grids() != opened.model.spec.has_sections())
      throw model::LoadError(
          fmt::format("{}: is another model's projector: only one of both has positions of three parts", file));
    spdlog::info("images: projector {}, up to {} of them kept encoded, on {} threads{}", file,
                 size_text(o.pictures.row_bytes), options.n_threads,
                 opened.device.is_gpu()
                     ? " of the CPU, beside steps on the GPU"
                     : fmt::format("; beside steps on {}, for at most a quarter of all threads' time",
                                   port::ThreadsBeside::most(options.n_threads)));
    return pictures;
  } catch (const model::LoadError& e) {
    if (o.projector.min_rows || o.projector.max_rows)
      throw model::LoadError(fmt::format("{} (with --image-min-tokens or --image-max-tokens as given)", e.what()));
    if (chosen) throw;
    spdlog::warn("no images: {}; it lies beside the model, --no-mmproj leaves it there without a word", e.what());
    return nullptr;
  }
}

/// Requests may hold as many rows as are kept beside their prompts. Rows that see each other both ways must find room
/// in one step, beside streams.
void make_room_for_pictures(ServeOptions& o, const Opened& opened) {
  if (opened.pictures) o.engine.max_weight += o.pictures.row_bytes / sizeof(kv::Token);
  const int longest = opened.pictures ? opened.pictures->longest_whole() : 0;
  const int least = longest + o.engine.max_batch - 1;
  if (longest == 0 || o.engine.step_tokens >= least) return;
  spdlog::info("steps have up to {} tokens, not {}: an image of {} is computed in one, beside {} streams", least,
               o.engine.step_tokens, longest, o.engine.max_batch - 1);
  o.engine.step_tokens = least;
}

/// A GPU wants more of them than the engine's default to be busy (64 prompts at once: the slowest first token comes
/// after 0.33 s instead of 0.38); on a CPU streams would wait for them.
constexpr int kGpuStepTokens = 2048;

}  // namespace

Opened open_files(ServeOptions& o) {
  Opened opened{.model = model::load_model(o.model)};
  opened.device = choose_device(o.device, opened.model, o.ggml);
  o.engine.step_tokens = o.step_tokens.value_or(opened.device.is_gpu() ? kGpuStepTokens : o.engine.step_tokens);
  if (!opened.device.is_gpu()) settle_memory(o, opened.model.file->size());
  opened.vocabulary = std::make_shared<const text::Vocabulary>(o.model);
  if (opened.vocabulary->size() > opened.model.spec.n_vocab) {
    throw std::runtime_error(fmt::format("{} is damaged: it has {} tokens in the vocabulary, {} in the embedding",
                                         o.model, opened.vocabulary->size(), opened.model.spec.n_vocab));
  }
  opened.chat_template =
      std::make_shared<const text::ChatTemplate>(opened.vocabulary, read_file(o.chat_template), chat_defaults(o));
  opened.pictures = open_projector(o, opened);
  make_room_for_pictures(o, opened);
  return opened;
}

}  // namespace coppice::cli
