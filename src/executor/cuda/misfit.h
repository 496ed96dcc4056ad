// Which models the CUDA executor runs. Knows no CUDA.
#pragma once

#include <string>

#include "model/model.h"

namespace coppice::executor::cuda {

/// Why this executor can't run a model, as part of a sentence ("experts"); empty: it can.
std::string misfit(const model::Model& model);

/// The models that it can run, for an error's sentence.
inline constexpr const char* kFitting =
    "decoders of the families llama (Llama, Mistral, Mixtral, SmolLM, ...), llama4, mistral3, qwen2, qwen2moe, "
    "qwen2vl, qwen3, qwen3moe, qwen3vl, qwen3vlmoe, gpt-oss, gemma, gemma2, gemma3, glm4, glm4moe, granite, "
    "granite_swa, minicpm, phi3, smollm3, seed_oss, internlm2, ernie4_5, exaone4, olmo2, spark2_5, muse-glimmer";

}  // namespace coppice::executor::cuda
