// Projector: the file beside a vision model (mmproj) that makes embedding rows of its text model from pictures, by
// libmtmd.
//
// What a picture is in a prompt differs by family: one stretch of rows; or a grid of tiles and a small view of the
// whole, with tokens between them.
//
// Owns the encoder's weights and its working memory. Thread safety: prepare() and what is const: any threads at once;
// encode(): one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "image/pixels.h"
#include "kv/digest.h"
#include "kv/types.h"
#include "vision/encoder_threads.h"

struct mtmd_context;
struct mtmd_input_chunk;

namespace coppice::text {
class Vocabulary;
}

namespace coppice::vision {

struct ProjectorOptions {
  int n_threads = 1;  ///< that encode, where no steps run
  /// Of one picture; none: as the file says. Only families whose pictures keep their sizes look at them.
  std::optional<int> min_rows, max_rows;
};

/// Rows that stand together. Shares what is to be encoded with its copies.
struct Stretch {
  std::shared_ptr<const mtmd_input_chunk> chunk;  ///< of layout(): without pixels
  int n_rows = 0;
  int columns = 0;     ///< where a position has three parts: its rows lie on a grid so wide, line by line. Otherwise 0
  bool whole = false;  ///< its rows see each other both ways
};

/// A picture as a prompt of the model has it.
using Parts = std::vector<std::variant<std::vector<kv::Token>, Stretch>>;

class Projector {
 public:
  /// `vocabulary` is the text model's, `embedding_size` how many values its rows have that are no tokens; it is kept.
  /// Throws model::LoadError: the file can't be read, is no projector for pictures, or one for another model.
  Projector(const std::filesystem::path& file, const text::Vocabulary& vocabulary, int embedding_size,
            const ProjectorOptions& options);
  ~Projector();
  Projector(const Projector&) = delete;
  Projector& operator=(const Projector&) = delete;

  /// Resizes and cuts it into tiles. Takes milliseconds and some 12 bytes for each pixel of all tiles. None: it can't
  /// be (a picture of one pixel's height that a family would have to blow up without end). Throws std::bad_alloc.
  std::optional<Parts> prepare(const image::Pixels& pixels) const;

  /// What prepare() makes of a picture of this size, but for what is to be encoded: nothing is resized. None: as
  /// prepare().
  std::optional<Parts> layout(std::uint32_t width, std::uint32_t height) const;

  /// [n_rows, embedding_size]. Takes seconds on a CPU. None: `stop`, which is asked every some milliseconds, said true.
  /// Throws std::bad_alloc; std::runtime_error: the encoder failed for another reason, or had no memory to say which.
  /// REQUIRES: prepare() made it.
  std::optional<std::vector<float>> encode(const Stretch& stretch, const std::function<bool()>& stop);

  int embedding_size() const { return embedding_size_; }
  bool grids() const;  ///< its rows have positions of three parts
  /// Of the whole file and the options: what decides, beside the pixels, which rows come out.
  const kv::Digest& digest() const { return digest_; }

 private:
  struct Free {
    void operator()(mtmd_context* context) const;
  };
  /// rgb: null: only the layout is wanted.
  std::optional<Parts> parts(std::uint32_t width, std::uint32_t height, const std::uint8_t* rgb) const;

  std::unique_ptr<mtmd_context, Free> context_;
  EncoderThreads threads_;
  int embedding_size_;
  kv::Digest digest_;
};

}  // namespace coppice::vision
