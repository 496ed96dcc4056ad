// The projector (mmproj) of a model that lies on this machine.
#pragma once

#include <filesystem>
#include <string>

#include "cli/local_models.h"

namespace coppice::cli {

/// Ollama's, as its manifest says; or a file with mmproj in its name, in the model's folder, that is called as the
/// model is but for the format of its weights; or one without a model's name, where all models of the folder are
/// formats of one. Of several the one with the most exact weights. Empty: there is none. Opens no file.
std::filesystem::path find_projector(const LocalModel& model);

/// A file's name without its ending, part's number, and what says the weights' format; of a projector also without that
/// word: lower case. "mmproj-SmolVLM-500M-Instruct-Q8_0.gguf" and "SmolVLM-500M-Instruct-f16.gguf" are both
/// "smolvlm-500m-instruct".
std::string bare_name(const std::filesystem::path& file);

}  // namespace coppice::cli
