// Families: how to read a ModelSpec out of a GGUF file, by its general.architecture. Adding a plain decoder
// means one function and one line in families.cpp; cache, engine and server don't know.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace coppice::model {

/// Reads and checks. Throws LoadError.
using FamilyReader = ModelSpec (*)(const GgufFile& file);

/// Llama, Mistral, SmolLM: RMS norm, rotary positions (neighbours), grouped-query attention, gated
/// feed-forward.
ModelSpec read_llama(const GgufFile& file);

std::vector<std::string_view> known_architectures();

/// Throws LoadError that lists the known architectures.
ModelSpec read_spec(const GgufFile& file);

}  // namespace coppice::model
