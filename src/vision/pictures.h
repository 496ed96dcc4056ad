// Pictures: from image files to what a prompt has of them, and to their rows. Remembers both: a picture that comes
// again is neither decoded nor encoded, whatever the prompt around it.
//
// A picture's rows are named by a digest of its pixels, its size, the projector's file and options, and their place in
// the picture: equal names mean equal rows, and one other pixel is another name. What is remembered is found by who
// remembers (`owner`, a namespace of the cache), so that how long a picture takes tells nobody what others have shown.
// It counts for who showed it first (`payer`, a key): where room is short, who has most of it gives.
//
// Owns the projector. Thread safety: any number of threads at once, but for Encoding's steps: one thread at a time.
//
// Invariants
//   1. A file is decoded within Limits::most_pixels. How many at once is the caller's to bound: whoever waited here for
//      another would hold up a thread that the other needs to go on (port/turn.h).
//   2. Rows that are kept weigh at most Limits::row_bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "check/mutex.h"
#include "image/pixels.h"
#include "kv/digest.h"
#include "vision/fetched_files.h"
#include "vision/picture.h"
#include "vision/projector.h"
#include "vision/remembered.h"

namespace coppice::vision {

/// Since start.
struct PictureFigures {
  std::uint64_t decoded = 0;   ///< files
  std::uint64_t encoded = 0;   ///< stretches of rows
  std::uint64_t found = 0;     ///< stretches whose rows were kept
  double encode_seconds = 0;   ///< of the encoder's thread
  std::size_t kept_bytes = 0;  ///< rows, by now
};

class Pictures;

/// From now on Pictures::look() throws NotDecoded on this thread where it would have to decode, a second or so for a
/// large picture.
void forbid_decoding_here();
struct NotDecoded final : std::exception {
  const char* what() const noexcept override { return "a picture must be decoded first, on another thread"; }
};

/// While it lives somebody waits for a picture's rows: encoding that one request has begun goes on for others. Any
/// thread.
class PictureWish {
 public:
  PictureWish(Pictures& pictures, const Picture& picture, std::string_view owner);
  ~PictureWish();
  PictureWish(const PictureWish&) = delete;
  PictureWish& operator=(const PictureWish&) = delete;

 private:
  Pictures& pictures_;
  std::vector<kv::Digest> media_;  ///< the owner's
};

class Pictures {
 public:
  struct Limits {
    std::uint64_t most_pixels = 25'000'000;
    std::size_t row_bytes = std::size_t{256} << 20;
  };

  Pictures(std::unique_ptr<Projector> projector, const Limits& limits)
      : projector_(std::move(projector)), limits_(limits), rows_(limits.row_bytes) {}

  /// Takes what decoding takes, or microseconds if it came before. The error follows "The image". Throws NotDecoded.
  std::expected<std::shared_ptr<const Picture>, std::string> look(std::span<const std::uint8_t> file, Detail detail,
                                                                  std::string_view owner, std::string_view payer = {});

  /// Null: they aren't kept.
  Rows kept(const kv::Medium& medium, std::string_view owner);

  /// Of pictures that were looked at lately, for people: "512x384".
  std::string size_text(const kv::Digest& medium);

  /// Of all owners: what is known of pictures, and their rows. Those that a request holds stay with it.
  void forget();

  FetchedFiles& fetched() { return fetched_; }

  int embedding_size() const { return projector_->embedding_size(); }
  bool grids() const { return projector_->grids(); }
  const Limits& limits() const { return limits_; }
  /// At least the rows of the longest stretch whose rows see each other both ways; 0: none do. Tries some hundred
  /// shapes of pictures.
  int longest_whole() const;
  PictureFigures figures() const;

 private:
  friend class Encoding;
  friend class PictureWish;
  void add_wishes(std::span<const kv::Digest> media);
  void remove_wishes(std::span<const kv::Digest> media);
  int count_wishes(const kv::Medium& medium, std::string_view owner);
  std::expected<image::Pixels, std::string> decode(std::span<const std::uint8_t> file, Detail detail);

  std::unique_ptr<Projector> projector_;
  const Limits limits_;
  Remembered<std::shared_ptr<const Picture>> pictures_{std::size_t{4} << 20};  ///< by file
  Remembered<std::string> sizes_{std::size_t{1} << 20};                        ///< by medium
  Remembered<Rows> rows_;
  FetchedFiles fetched_;
  check::Mutex mutex_;
  std::multiset<kv::Digest> wished_ COPPICE_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> decoded_ = 0, encoded_ = 0, found_ = 0, encode_nanoseconds_ = 0;
};

/// Whom is an encoding under way for, by now?
enum class Wanted { kByCaller, kByOthers, kByNobody };

/// The rows of one picture, a stretch each step. Holds what the projector prepared of it from the first step that
/// encodes to the last.
class Encoding {
 public:
  /// What it refers to outlives it. REQUIRES: look() made `picture` of the file, with this detail.
  Encoding(Pictures& pictures, std::span<const std::uint8_t> file, Detail detail,
           std::shared_ptr<const Picture> picture, std::string_view owner, std::string_view payer = {});

  /// Takes rows that are kept, up to the first that aren't. True: all rows are there.
  bool take_kept();

  /// take_kept(), and encodes at most one stretch: seconds on a CPU. True: all rows are there. The error
  /// follows "The image". `wanted`: asked every some milliseconds. Ends early, and false, if nobody wants it any more,
  /// or the caller doesn't and at most one PictureWish is for these rows: its own. Throws what Projector::encode()
  /// throws.
  std::expected<bool, std::string> step(const std::function<Wanted()>& wanted);

  /// Of the picture's media, in order. REQUIRES: step() or take_kept() returned true.
  const std::vector<Rows>& rows() const { return rows_; }

 private:
  Pictures& pictures_;
  std::span<const std::uint8_t> file_;
  Detail detail_;
  std::shared_ptr<const Picture> picture_;
  std::string owner_, payer_;
  std::vector<kv::Medium> media_;
  std::optional<std::vector<Stretch>> sources_;
  std::vector<Rows> rows_;
};

}  // namespace coppice::vision
