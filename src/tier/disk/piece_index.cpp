#include "tier/disk/piece_index.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "check/assert.h"
#include "tier/faults.h"

namespace coppice::tier {

namespace {

std::uint32_t seconds(std::int64_t time) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(time, 0, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

PieceIndex::Piece* PieceIndex::find(const Name& name) {
  const auto found = pieces_.find(name);
  return found == pieces_.end() ? nullptr : &found->second;
}

void PieceIndex::take(const Name& name) {
  const auto [at, is_new] = pieces_.try_emplace(name);
  COPPICE_ASSERT(is_new);
  at->second.name = &at->first;
}

void PieceIndex::begin_write(Piece& piece, std::uint64_t bytes) {
  COPPICE_ASSERT(piece.stage == Stage::kTaken);
  piece.stage = Stage::kWriting;
  piece.bytes = bytes;
  bytes_ += bytes;
}

void PieceIndex::hold(Piece& piece, std::int64_t now) {
  COPPICE_ASSERT(piece.stage == Stage::kWriting);
  piece.stage = Stage::kHeld;
  piece.used = piece.stamped = seconds(now);
  append(held_, piece);
  ++n_held_;
  held_bytes_ += piece.bytes;
}

void PieceIndex::use(Piece& piece, std::int64_t now) {
  COPPICE_ASSERT(piece.stage == Stage::kHeld);
  piece.used = seconds(now);
  unlink(held_, piece);
  append(held_, piece);
}

void PieceIndex::leave_row(Piece& piece) {
  if (piece.stage == Stage::kHeld) {
    unlink(held_, piece);
    --n_held_;
    held_bytes_ -= piece.bytes;
    if (std::exchange(piece.told, false)) told_left_(*piece.name);
  } else if (piece.stage == Stage::kToRemove) {
    unlink(to_remove_, piece);
    --n_to_remove_;
    bytes_to_remove_ -= piece.bytes;
  }
}

void PieceIndex::doom(Piece& piece) {
  if (piece.stage == Stage::kTaken || piece.stage == Stage::kWriting) {
    piece.stage = Stage::kCancelled;
    return;
  }
  COPPICE_ASSERT(piece.stage == Stage::kHeld);
  leave_row(piece);
  enter_removal(piece);
}

void PieceIndex::abandon(Piece& piece) {
  COPPICE_ASSERT(piece.stage != Stage::kHeld && piece.stage != Stage::kToRemove);
  enter_removal(piece);
}

void PieceIndex::enter_removal(Piece& piece) {
  piece.stage = Stage::kToRemove;
  append(to_remove_, piece);
  ++n_to_remove_;
  bytes_to_remove_ += piece.bytes;
}

const Name* PieceIndex::begin_removal() {
  Piece* const piece = to_remove_.first;
  if (piece == nullptr) return nullptr;
  leave_row(*piece);
  piece->stage = Stage::kRemoving;
  return piece->name;
}

void PieceIndex::begin_removal(Piece& piece) {
  COPPICE_ASSERT(piece.stage == Stage::kHeld);
  leave_row(piece);
  piece.stage = Stage::kRemoving;
}

void PieceIndex::erase(const Name& name) {
  const auto found = pieces_.find(name);
  COPPICE_ASSERT(found != pieces_.end());
  leave_row(found->second);
  bytes_ -= found->second.bytes;
  pieces_.erase(found);
}

void PieceIndex::clear() {
  *this = PieceIndex();
}

void PieceIndex::doom_all(const std::function<bool(const Name&, const Piece&)>& unwanted) {
  for (auto& [name, piece] : pieces_) {
    const bool may_go = piece.stage == Stage::kHeld || (piece.stage < Stage::kHeld && !fault(Fault::kForgottenReturns));
    if (may_go && unwanted(name, piece)) doom(piece);
  }
}

std::vector<Name> PieceIndex::held(const std::array<std::uint8_t, 16>& model) const {
  std::vector<Name> names;
  for (const Piece* piece = held_.first; piece != nullptr; piece = piece->behind)
    if (piece->name->model == model) names.push_back(*piece->name);
  return names;
}

void PieceIndex::enter(const Name& name, std::uint64_t bytes, std::int64_t used) {
  take(name);
  Piece& piece = *find(name);
  begin_write(piece, bytes);
  hold(piece, used);
}

void PieceIndex::sort_by_use() {
  std::vector<Piece*> order;
  order.reserve(n_held_);
  for (Piece* piece = held_.first; piece != nullptr; piece = piece->behind) order.push_back(piece);
  std::ranges::sort(order, {}, [](const Piece* piece) { return piece->used; });
  held_ = Row();
  for (Piece* piece : order) append(held_, *piece);
}

std::string PieceIndex::check() const {
  std::size_t n_held = 0, n_to_remove = 0;
  std::uint64_t held_bytes = 0, bytes = 0, bytes_to_remove = 0;
  for (const auto& [name, piece] : pieces_) {
    bytes += piece.bytes;
    n_held += piece.stage == Stage::kHeld ? 1 : 0;
    held_bytes += piece.stage == Stage::kHeld ? piece.bytes : 0;
    n_to_remove += piece.stage == Stage::kToRemove ? 1 : 0;
    bytes_to_remove += piece.stage == Stage::kToRemove ? piece.bytes : 0;
  }
  if (n_held != n_held_ || n_to_remove != n_to_remove_) return "the index counts pieces wrong";
  if (held_bytes != held_bytes_ || bytes != bytes_ || bytes_to_remove != bytes_to_remove_)
    return "the index counts bytes wrong";
  const auto length = [](const Row& row) {
    std::size_t n = 0;
    for (const Piece* piece = row.first; piece != nullptr; piece = piece->behind) ++n;
    return n;
  };
  return length(held_) == n_held && length(to_remove_) == n_to_remove ? "" : "a row of the index is broken";
}

void PieceIndex::append(Row& row, Piece& piece) {
  piece.before = row.last;
  piece.behind = nullptr;
  (row.last == nullptr ? row.first : row.last->behind) = &piece;
  row.last = &piece;
}

void PieceIndex::unlink(Row& row, Piece& piece) {
  (piece.before == nullptr ? row.first : piece.before->behind) = piece.behind;
  (piece.behind == nullptr ? row.last : piece.behind->before) = piece.before;
}

}  // namespace coppice::tier
