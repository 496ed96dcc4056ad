// PromptPictures: the pictures of one request, from what a client sent to symbols of its prompt, and to their rows.
//
// In a chat's text each picture is a marker, a name that nobody can guess: no text of a client becomes a picture. What
// a template does to it, it does to a word.
//
// Thread safety: none; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/prompt.h"
#include "kv/text.h"
#include "vision/pictures.h"

namespace coppice::server {

struct Message;

/// One that a client sent. Messages share it with their copies.
struct PictureFile {
  PictureFile(std::vector<std::uint8_t> bytes, vision::Detail detail, std::string field);
  PictureFile(std::string url, vision::Detail detail, std::string field);

  std::vector<std::uint8_t> bytes;
  std::string url;  ///< where it is to be fetched from; empty: the bytes came with the request
  vision::Detail detail;
  std::string field;   ///< of the request, for errors
  std::string marker;  ///< in texts
};

/// A picture's symbols of a prompt, from its first row to its last.
struct PicturePlace {
  std::int32_t begin = 0, end = 0;
  std::string name;  ///< "the second of the third message"
};

class PromptPictures {
 public:
  using File = std::shared_ptr<const PictureFile>;

  /// `pictures`: null: there is no projector; then there are no files. What it refers to outlives it. `payer`: whose
  /// room is taken by what is kept of them.
  PromptPictures(vision::Pictures* pictures, std::string owner, std::string payer = {})
      : pictures_(pictures), owner_(std::move(owner)), payer_(std::move(payer)) {}

  void add(File file);
  void add(std::span<const Message> messages);
  bool empty() const { return placed_.empty(); }

  /// Those that must be fetched first: nobody of this owner holds them (vision/fetched_files.h).
  std::vector<File> missing();
  const std::string& owner() const { return owner_; }

  /// Decodes the next one, so that it is known how many rows it has. True: all are. Throws RequestError.
  /// REQUIRES: none is missing().
  bool look();
  bool looked() const { return n_looked_ == placed_.size(); }

  /// A part of a text: up to the next marker, and the picture behind it; null: there is none.
  struct Cut {
    std::size_t begin = 0, end = 0;
    File file;
  };
  std::vector<Cut> cuts(std::string_view text) const;
  /// REQUIRES: looked(), and it was added.
  const vision::Picture& picture(const File& file) const;

  /// Encodes a stretch of rows of one of them, where they aren't kept: on the encoder's thread. True: all are there.
  /// `wanted`: as vision::Encoding::step()'s. Throws RequestError. REQUIRES: looked().
  bool encode(const std::function<vision::Wanted()>& wanted);
  /// Takes rows that are kept, which takes no time. True: all are there. REQUIRES: looked().
  bool take_kept();
  bool encoded() const { return n_encoded_ == placed_.size(); }

  /// Throws RequestError if a template has left one out.
  void check_all_in(std::string_view text) const;

  /// Where they are in a prompt. REQUIRES: looked().
  std::vector<PicturePlace> places(kv::TextView text) const;

  /// REQUIRES: encoded(), and all media of the text are pictures of this.
  engine::Prompt prompt(kv::TextView text) const;

 private:
  vision::Encoding& encoding();
  void end_encoding();

  struct Placed {
    File file;
    vision::FetchedFiles::File fetched = nullptr;
    std::shared_ptr<const vision::Picture> picture = nullptr;
    std::unique_ptr<vision::PictureWish> wish = nullptr;  ///< until its rows are there

    std::span<const std::uint8_t> bytes() const { return fetched ? std::span(*fetched) : std::span(file->bytes); }
    bool is_there() const { return fetched != nullptr || file->url.empty(); }
  };
  vision::Pictures* pictures_;
  std::string owner_, payer_;
  std::vector<Placed> placed_;
  std::map<std::string_view, std::size_t> by_marker_;
  std::size_t n_looked_ = 0, n_encoded_ = 0;
  std::optional<vision::Encoding> encoding_;
  std::map<kv::Digest, engine::Medium> media_;
};

/// Thrown where a prompt's pictures must be fetched before it can be looked at.
struct MissingPictures final : std::exception {
  MissingPictures(std::string its_owner, std::vector<PromptPictures::File> its_files)
      : owner(std::move(its_owner)), files(std::move(its_files)) {}
  const char* what() const noexcept override { return "pictures must be fetched first"; }

  std::string owner;
  std::vector<PromptPictures::File> files;
};

/// Symbols of a picture, behind those that are there.
void append(const vision::Picture& picture, kv::Text& to);

/// The text with "<__media__>", llama-server's marker, for each picture.
std::string with_public_markers(const std::string& text, const PromptPictures& pictures);
inline constexpr std::string_view kPublicMarker = "<__media__>";

}  // namespace coppice::server
