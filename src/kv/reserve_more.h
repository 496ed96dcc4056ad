// reserve_more(): makes room in a vector before anything changes, so that the changes cannot fail. Grows as push_back()
// does.
#pragma once

#include <algorithm>
#include <cstddef>

namespace coppice::kv {

template <class Vector>
void reserve_more(Vector& vector, std::size_t n) {
  if (vector.capacity() - vector.size() < n) vector.reserve(std::max(vector.size() + n, 2 * vector.capacity()));
}

}  // namespace coppice::kv
