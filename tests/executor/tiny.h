// Executors of tiny random models: written once into the scratch folder, loaded in milliseconds.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "executor/ggml/ggml_executor.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"

namespace coppice::test {

inline std::string tiny_path(const std::string& name, const TinyModel& model) {
  const auto path = scratch_folder() / (name + ".gguf");
  if (!std::filesystem::exists(path)) write_tiny_model(model, path);
  return path.string();
}

/// Of the tiny models' vocabulary.
inline std::vector<kv::Token> random_tokens(std::mt19937& random, std::size_t n) {
  std::vector<kv::Token> tokens(n);
  for (kv::Token& t : tokens) t = static_cast<kv::Token>(random() % 320);
  return tokens;
}

inline std::unique_ptr<executor::Executor> load(const std::string& path, const std::string& attention,
                                                int block_size = 32, int n_threads = 1,
                                                const std::string& kv_format = "f16",
                                                std::size_t kv_bytes = std::size_t{4} << 20) {
  executor::GgmlOptions o;
  o.attention = attention;
  o.kv_format = kv_format;
  o.kv_bytes = kv_bytes;
  o.block_size = block_size;
  o.n_threads = n_threads;
  o.max_rows = 256;
  return executor::load_ggml_executor(model::load_model(path), o, {});
}

}  // namespace coppice::test
