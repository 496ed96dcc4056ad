// A step of one layer as attention_bench runs it: a case of the tests (the same structs) in one KV format, and keys and
// values for it. A step owns no keys: they lie in one arena, which each step divides into as many layers as fit, so
// that no layer is still in the caches when its turn comes again.
//
// Plain data; after make_step() only `out` changes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "huge_buffer.h"
#include "support/attention_cases.h"

namespace coppice::bench {

struct BenchCase {
  test::AttentionCase what;
  attention::KvFormat format = attention::KvFormat::kF16;

  std::string name() const;
  /// Of one slot's keys (or values), all heads.
  std::size_t row_bytes() const;
  /// Of all blocks' keys and values.
  std::size_t pool_bytes() const;
  /// Keys and values that some row sees; a block's other slots don't count.
  std::size_t unique_bytes() const { return 2 * static_cast<std::size_t>(what.unique_slots()) * row_bytes(); }
  double multiply_adds() const;
  /// Decodes that share nothing: the kernel takes one pass over each block.
  bool one_pass() const;
  /// As many as make so many unique bytes.
  std::size_t layers_of(std::size_t bytes) const { return (bytes + unique_bytes() - 1) / unique_bytes(); }
};

struct Step {
  BenchCase c;
  std::vector<attention::PoolView> layers;
  std::vector<float> q;    ///< [n_rows, n_head, head_dim]
  std::vector<float> out;  ///< [n_rows, n_head, head_dim]
};

/// Decodes of both model shapes over contexts and batches, and the tests' named steps. Cases that differ in their
/// format only are neighbours.
std::vector<BenchCase> all_cases(std::span<const attention::KvFormat> formats);

/// What all cases need for samples of `enough` unique bytes, but for no more than `allowed` if each fits into that
/// once.
std::size_t arena_bytes(std::span<const BenchCase> cases, std::size_t enough, std::size_t allowed);

/// Fills with f16 numbers of either sign, 0.25 to 0.5 large; they do as codes of other formats, too.
void fill_f16(HugeBuffer& arena);

/// Makes the arena's numbers scales where the format has them: not negative. REQUIRES: pool_bytes() fit into the arena.
Step make_step(const BenchCase& c, HugeBuffer& arena);

/// Relative RMS distance of `out`, computed on layers[layer], from attention in double precision: the first and the
/// last row, all heads. (All rows would take minutes.)
double distance_from_reference(const Step& step, std::size_t layer);

}  // namespace coppice::bench
