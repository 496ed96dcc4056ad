#include "support/libllama.h"

#include <llama.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "model/cpu_device.h"

namespace coppice::test {

namespace {

std::shared_ptr<llama_model> load(const std::string& path) {
  static std::map<std::string, std::weak_ptr<llama_model>> loaded;
  if (auto model = loaded[path].lock()) return model;
  model::cpu_device();  // where ggml's kernels are chosen at run time, libllama has none before
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  std::shared_ptr<llama_model> model(llama_model_load_from_file(path.c_str(), params), llama_model_free);
  if (!model) throw std::runtime_error("libllama cannot load " + path);
  loaded[path] = model;
  return model;
}

}  // namespace

Libllama::Libllama(const std::string& path, bool flash_attention, int n_threads, bool f32_cache, Pooling pooling,
                   int context)
    : context_(nullptr, llama_free) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  model_ = load(path);
  llama_context_params cp = llama_context_default_params();
  cp.n_ctx = static_cast<std::uint32_t>(std::min(context, llama_model_n_ctx_train(model_.get())));
  cp.n_batch = 512;
  cp.n_ubatch = 512;
  cp.n_threads = n_threads;
  cp.n_threads_batch = n_threads;
  cp.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  if (f32_cache) cp.type_k = cp.type_v = GGML_TYPE_F32;
  if (pooling != Pooling::kNone) {
    cp.embeddings = true;
    cp.pooling_type = pooling == Pooling::kMean ? LLAMA_POOLING_TYPE_MEAN : LLAMA_POOLING_TYPE_LAST;
    cp.n_batch = cp.n_ubatch = 2048;
  }
  context_.reset(llama_init_from_model(model_.get(), cp));
  if (!context_) throw std::runtime_error("libllama has no context for " + path);
}

Libllama::~Libllama() = default;

std::vector<kv::Token> Libllama::tokenize(const std::string& text) const {
  const llama_vocab* vocab = llama_model_get_vocab(model_.get());
  std::vector<kv::Token> tokens(text.size() + 8);
  const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                               static_cast<int>(tokens.size()), true, false);
  if (n < 0) throw std::runtime_error("libllama cannot tokenize");
  tokens.resize(static_cast<std::size_t>(n));
  return tokens;
}

void Libllama::clear() {
  llama_memory_clear(llama_get_memory(context_.get()), true);
  position_ = 0;
}

std::vector<float> Libllama::embed(std::span<const kv::Token> tokens) {
  clear();
  llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = static_cast<llama_pos>(i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = static_cast<int>(tokens.size());
  const int status = llama_decode(context_.get(), batch);
  llama_batch_free(batch);
  const float* x = status == 0 ? llama_get_embeddings_seq(context_.get(), 0) : nullptr;
  if (x == nullptr) throw std::runtime_error("libllama has no embedding");
  return {x, x + llama_model_n_embd(model_.get())};
}

std::vector<std::vector<float>> Libllama::feed(std::span<const kv::Token> tokens, int n_last) {
  const auto n_vocab = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
  std::vector<std::vector<float>> rows;
  const auto first_wanted = tokens.size() - static_cast<std::size_t>(n_last);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t n = std::min<std::size_t>(512, tokens.size() - done);
    llama_batch batch = llama_batch_init(static_cast<int>(n), 0, 1);
    for (std::size_t i = 0; i < n; ++i) {
      batch.token[i] = tokens[done + i];
      batch.pos[i] = position_++;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = done + i >= first_wanted ? 1 : 0;
    }
    batch.n_tokens = static_cast<int>(n);
    const int status = llama_decode(context_.get(), batch);
    for (std::size_t i = 0; status == 0 && i < n; ++i) {
      if (!batch.logits[i]) continue;
      const float* row = llama_get_logits_ith(context_.get(), static_cast<int>(i));
      rows.emplace_back(row, row + n_vocab);
    }
    llama_batch_free(batch);
    if (status != 0) throw std::runtime_error("libllama cannot decode");
    done += n;
  }
  return rows;
}

}  // namespace coppice::test
