// Splits a GGUF file into several, as llama.cpp's gguf-split does.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace coppice::test {

/// The first part has all metadata. Tensors are dealt out in order, evenly among all parts, or among all but the first.
struct Split {
  int parts = 3;
  bool first_has_tensors = true;
};

/// Writes STEM-00001-of-0000N.gguf and so on beside each other; returns their paths. Throws std::runtime_error.
std::vector<std::string> split_gguf(const std::filesystem::path& from, const std::filesystem::path& stem,
                                    Split split = {});

}  // namespace coppice::test
