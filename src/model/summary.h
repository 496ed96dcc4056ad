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
  int context_length = 0;       ///< tokens that it was trained for; this and what follows is 0 where it can't be loaded
  int n_layers = 0, n_recurrent = 0;   ///< all, and of these those that keep a state in place of keys and values
  std::size_t token_bytes = 0;         ///< keys and values of a token in f16, in layers that see all positions
  std::size_t window_token_bytes = 0;  ///< the same, in layers that see a window
  bool has_chat_template = false;
  std::string complaint;  ///< why it can't be loaded; empty: it can, as far as headers tell
};

/// `path` is the first part of a split model. Never throws LoadError: that is the complaint.
Summary summarize(const std::string& path);

}  // namespace coppice::model
