// How the GPU's thread blocks share a product, without one: panels of rows sorted by part, and who computes which
// stages of a tile.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "matmul/cuda/row_panels.h"
#include "matmul/cuda/tile_walk.h"

namespace coppice::matmul::cuda {
namespace {

/// However rows are shared out among parts, and the bound is reached.
TEST(RowPanels, HaveRoomForTheWorstCase) {
  for (const int panel_rows : {1, 2, 3, 5}) {
    for (int n_parts = 1; n_parts <= 4; ++n_parts) {
      for (int n_rows = 1; n_rows <= 12; ++n_rows) {
        // All ways, the first parts' rows as the digits of a number.
        int most = 0, ways = 1;
        for (int i = 1; i < n_parts; ++i) ways *= n_rows + 1;
        for (int way = 0; way < ways; ++way) {
          int left = n_rows, panels = 0;
          for (int i = 1, digits = way; i < n_parts; ++i, digits /= n_rows + 1) {
            left -= digits % (n_rows + 1);
            panels += (digits % (n_rows + 1) + panel_rows - 1) / panel_rows;
          }
          if (left >= 0) most = std::max(most, panels + (left + panel_rows - 1) / panel_rows);
        }
        EXPECT_EQ(most_panels(n_rows, n_parts, panel_rows), most)
            << n_rows << " rows of " << n_parts << " parts in panels of " << panel_rows;
      }
    }
  }
}

/// What a thread block does with a segment (tile_product.cuh): it finishes the tile, adding the parts of blocks behind
/// it, or hands its part over. Each stage is computed once, and each part handed over once and waited for once: else a
/// launch waits for ever, or the next one finds a part too many. Whether a nearly even round is left whole or not.
TEST(TileWalk, PartsAreHandedOverAndTakenOnce) {
  for (int n_blocks = 1; n_blocks <= 24; ++n_blocks) {
    for (int n_stages = 1; n_stages <= 9; ++n_stages) {
      for (int n_tiles = (n_blocks + n_stages - 1) / n_stages; n_tiles <= 80; ++n_tiles) {
        for (const int even : {1, n_blocks / 2, n_blocks}) {
          TileGrid grid{.n_stages = n_stages, .n_row_tiles = 1, .n_shared = 0, .n_tiles = n_tiles};
          grid.share(n_blocks, even);
          std::vector<int> stages(static_cast<std::size_t>(n_tiles * n_stages)),
              given(static_cast<std::size_t>(n_blocks), -1), wanted(given);
          for (int block = 0; block < n_blocks; ++block) {
            TileWalk walk(grid, block, n_blocks);
            bool first = true;
            for (Segment s{}; walk.next(s); first = false) {
              ASSERT_LT(s.first, s.end);
              for (int i = s.first; i < s.end; ++i) ++stages[static_cast<std::size_t>(s.tile * n_stages + i)];
              if (s.first > 0) {
                ASSERT_TRUE(first) << "its place for a part is still in use";
                given[static_cast<std::size_t>(block)] = s.tile;
              } else if (s.end < n_stages) {
                for (int other = block + 1; other <= grid.last_with(s.tile, block + 1, n_blocks); ++other) {
                  ASSERT_EQ(wanted[static_cast<std::size_t>(other)], -1);
                  wanted[static_cast<std::size_t>(other)] = s.tile;
                }
              }
            }
          }
          ASSERT_EQ(given, wanted) << n_tiles << " tiles of " << n_stages << " stages, ";
          ASSERT_EQ(stages, std::vector<int>(stages.size(), 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace coppice::matmul::cuda
