// Pieces of a grammar in a row, with white space between them as a parser of answers reads it.
//
// For this folder's .cpp files.
#pragma once

#include <string>
#include <utility>

namespace coppice::text {

/// Between marks. The parsers allow any number of blanks, twice in a row at many places: a text then has hundreds of
/// readings.
inline constexpr const char* kSpace = R"("" | " " | "\n" | "\n\n")";
/// GBNF that stands in a row with others; empty: nothing.
struct Piece {
  std::string text;
  bool space_first = false, space_last = false;
  bool open_first = false;  ///< it begins with any text
  bool peeks = false;       ///< the parser wants to see right behind it what follows
};

/// Pieces in a row: never two spaces, none before any text, nor where the parser wants to see what follows.
class PieceRow {
 public:
  explicit PieceRow(std::string space) : space_(std::move(space)) {}
  void add(const Piece& more) {
    if (more.text.empty()) {
      all_.peeks |= more.peeks;
      return;
    }
    if (more.text == space_) {
      pending_ = !all_.peeks;
      return;
    }
    const bool first = all_.text.empty();
    if (pending_ && !more.space_first && !more.open_first && !all_.space_last) {
      append(space_);
      all_.space_first |= first;
    }
    if (first && !pending_) {
      all_.space_first = more.space_first;
      all_.open_first = more.open_first;
    }
    append(more.text);
    pending_ = false;
    all_.space_last = more.space_last;
    all_.peeks = more.peeks;
  }
  Piece done() && {
    if (pending_ && !all_.space_last) {
      all_.space_first |= all_.text.empty();
      append(space_);
      all_.space_last = true;
    }
    return std::move(all_);
  }

 private:
  void append(const std::string& text) { all_.text += (all_.text.empty() ? "" : " ") + text; }
  std::string space_;
  Piece all_;
  bool pending_ = false;
};

}  // namespace coppice::text
