// A step's new rows before a layer's attention: queries and keys turn to their positions (Rope), keys and values go
// into the pool. All in one pass, so that workers wait for each other once. Compiled for each instruction set.
#pragma once

#include <cstddef>

#include "attention/kv_format.h"
#include "kv/types.h"

namespace coppice::attention {

struct NewRows {
  KvFormat format;
  int n_head, n_kv_head;  ///< n_kv_head 0: there are queries only
  int head_dim;           ///< a multiple of 16, at most kMaxRotated, unless the format is f16
  int n;
  float* queries;                   ///< [n, n_head, head_dim]: turned in place
  float* keys = nullptr;            ///< [n, n_kv_head, head_dim]: turned in place
  const float* values = nullptr;    ///< [n, n_kv_head, head_dim]
  const float* turns = nullptr;     ///< [n, 2, turned_dims] of Rope::turn
  int turned_dims = 0;              ///< even, at most head_dim; 0: nothing turns, and there are no turns
  bool halves = false;              ///< Rope::halves
  const kv::Slot* slots = nullptr;  ///< [n], all different
  std::byte* key_pool = nullptr;    ///< slot i begins i * row_stride bytes behind slot 0
  std::byte* value_pool = nullptr;  ///< the same of values
  std::size_t row_stride = 0;
};

/// One of n_workers does its share. Thread safe, together with the others.
void enter_rows(const NewRows& rows, int worker, int n_workers);

}  // namespace coppice::attention
