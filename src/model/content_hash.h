// What a model is, to the last byte: for what outlives the process. Model::digest looks at a sample of each tensor, so
// two files may share one.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "model/gguf_file.h"

namespace coppice::model {

/// Hex SHA-256 over the hashes of these files, each whole. A file is read once: its hash is kept in `remembered`, a
/// file that is made, by path, inode, size and time of change. One that can't be read or written is as good as none,
/// and an empty path is none. Some seconds for each 10 GB; `stop` is asked now and then, and true ends it. Empty: it
/// was stopped, or a file can't be read, or is not the one any more that the model was read from.
std::string content_hash(std::span<const ModelPart> files, const std::filesystem::path& remembered,
                         const std::function<bool()>& stop = {});

}  // namespace coppice::model
