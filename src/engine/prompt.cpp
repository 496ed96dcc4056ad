#include "engine/prompt.h"

#include <algorithm>

#include "check/assert.h"

namespace coppice::engine {

std::int32_t Prompt::Placed::next_position() const {
  const std::int32_t rows = medium.name.rows, columns = medium.columns;
  return position + (columns == 0 ? rows : std::max(columns, (rows + columns - 1) / columns));
}

void Prompt::append(Medium medium) {
  const std::int32_t rows = medium.name.rows;
  COPPICE_ASSERT(rows > 0 && medium.columns >= 0 && medium.embeddings && !medium.embeddings->empty() &&
                 medium.embeddings->size() % static_cast<std::size_t>(rows) == 0);
  const auto first = static_cast<std::int32_t>(text_.size());
  media_.reserve(media_.size() + 1);
  text_.append(medium.name);
  grids_ |= medium.columns > 0;
  const Placed& placed =
      media_.emplace_back(Placed{.first = first, .position = first + shift_, .medium = std::move(medium)});
  shift_ = placed.next_position() - placed.end();
}

const Prompt::Placed* Prompt::before(std::int32_t index) const {
  const auto behind = std::ranges::upper_bound(media_, index, {}, &Placed::first);
  return behind == media_.begin() ? nullptr : &*std::prev(behind);
}

std::span<const float> Prompt::embedding(std::int32_t index) const {
  const Placed* const placed = before(index);
  COPPICE_ASSERT(placed != nullptr && index < placed->end());
  const std::vector<float>& all = *placed->medium.embeddings;
  const std::size_t n = all.size() / static_cast<std::size_t>(placed->medium.name.rows);
  return std::span(all).subspan(static_cast<std::size_t>(index - placed->first) * n, n);
}

executor::RopePosition Prompt::position(std::int32_t index) const {
  const Placed* const placed = before(index);
  if (placed == nullptr) return {index, index, index};
  const std::int32_t row = index - placed->first, columns = placed->medium.columns;
  if (index < placed->end() && columns > 0)
    return {placed->position, placed->position + row / columns, placed->position + row % columns};
  const std::int32_t at =
      index < placed->end() ? placed->position + row : placed->next_position() + index - placed->end();
  return {at, at, at};
}

}  // namespace coppice::engine
