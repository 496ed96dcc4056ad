// PieceIndex: what a folder holds, by name and by when it was used last. Moves no files. Not thread-safe. About 150
// bytes of memory a piece.
//
// Life of a piece: taken -> being written -> held -> to be removed -> being removed -> gone. Names in all of these
// states are there once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tier/name.h"

namespace coppice::tier {

class PieceIndex {
 public:
  enum class Stage : std::uint8_t {
    kTaken,      ///< somebody will write it; it has no bytes yet
    kWriting,    ///< its bytes count
    kHeld,       ///< the only ones that are found and evicted
    kCancelled,  ///< taken or being written, and not wanted any more
    kToRemove,
    kRemoving,
  };
  struct Piece {
    Stage stage = Stage::kTaken;
    std::uint32_t stamped = 0;  ///< when its file was last touched: seconds since 1970
    std::uint32_t used = 0;
    std::uint64_t bytes = 0;  ///< of the disk
    bool told = false;        ///< to an observer. When it is held no more, it isn't, and on_told_left() is called
   private:
    friend class PieceIndex;
    const Name* name = nullptr;
    Piece *before = nullptr, *behind = nullptr;  ///< kHeld: in the order of use; kToRemove: of all such
  };

  /// Null: not there. Valid while it is there.
  Piece* find(const Name& name);

  /// REQUIRES: it isn't there.
  void take(const Name& name);
  /// REQUIRES: kTaken.
  void begin_write(Piece& piece, std::uint64_t bytes);
  /// It is held, and was used just now. REQUIRES: kWriting.
  void hold(Piece& piece, std::int64_t now);
  /// REQUIRES: kHeld.
  void use(Piece& piece, std::int64_t now);
  /// It is found no more. REQUIRES: kTaken, kWriting (whoever writes it sees that), kHeld.
  void doom(Piece& piece);
  /// Its file, if there is one, is to be removed. REQUIRES: kTaken, kWriting, kCancelled, kRemoving.
  void abandon(Piece& piece);
  /// The next one that is to be removed is being removed. Null: there is none.
  const Name* begin_removal();
  /// REQUIRES: kHeld. Of this piece, and out of turn.
  void begin_removal(Piece& piece);
  void erase(const Name& name);
  void clear();

  /// The one that was used least recently. Null: none is held.
  Piece* oldest() { return held_.first; }
  /// Of pieces that were told, and are held no more.
  void on_told_left(std::function<void(const Name&)> f) { told_left_ = std::move(f); }
  /// Those of a model (Name::model) that are held, what was used least recently first.
  std::vector<Name> held(const std::array<std::uint8_t, 16>& model) const;

  /// Dooms all held, taken and written ones that are `unwanted`.
  void doom_all(const std::function<bool(const Name&, const Piece&)>& unwanted);

  /// A piece that was found on the disk. In any order; sort_by_use() follows. REQUIRES: it isn't there.
  void enter(const Name& name, std::uint64_t bytes, std::int64_t used);
  void sort_by_use();

  std::size_t n_held() const { return n_held_; }
  std::size_t n_to_remove() const { return n_to_remove_; }
  std::uint64_t held_bytes() const { return held_bytes_; }
  std::uint64_t bytes() const { return bytes_; }  ///< of all that take room
  std::uint64_t bytes_to_remove() const { return bytes_to_remove_; }
  std::size_t size() const { return pieces_.size(); }

  /// Recomputes all sums: "" or what is wrong. For tests.
  std::string check() const;

 private:
  struct Row {
    Piece *first = nullptr, *last = nullptr;
  };
  static void append(Row& row, Piece& piece);
  static void unlink(Row& row, Piece& piece);
  void leave_row(Piece& piece);
  void enter_removal(Piece& piece);

  std::unordered_map<Name, Piece, HashOfName> pieces_;
  std::function<void(const Name&)> told_left_;
  Row held_, to_remove_;
  std::size_t n_held_ = 0, n_to_remove_ = 0;
  std::uint64_t held_bytes_ = 0, bytes_to_remove_ = 0, bytes_ = 0;
};

}  // namespace coppice::tier
