// summarize: what a model file says of itself, for people who choose one. Reads headers only, whatever the file's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace coppice::model {

struct Summary {
  std::string family;           ///< general.architecture; empty: it says none
  std::string format;           ///< of the weights: "Q4_K_M"; empty: unknown
  std::int64_t parameters = 0;  ///< 0: unknown
  std::size_t bytes = 0;        ///< of all parts
  std::string complaint;        ///< why it can't be loaded; empty: it can, as far as headers tell
};

/// `path` is the first part of a split model. Never throws LoadError: that is the complaint.
Summary summarize(const std::string& path);

}  // namespace coppice::model
