// A matrix in device memory as the copy engine of Hopper knows it.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace coppice::cuda {

/// [rows][columns] 16-bit numbers, to be copied box by box: box_rows x 64 columns, 128 bytes a row, swizzled as the
/// tensor cores read them ("128-byte swizzle" of the PTX manual). What lies outside of the matrix arrives as zeros.
/// nullptr or why not. REQUIRES: `numbers` is 16-byte aligned; columns are a multiple of 8; box_rows <= 256.
const char* describe_rows(CUtensorMap& map, const void* numbers, int rows, int columns, int box_rows);

}  // namespace coppice::cuda
