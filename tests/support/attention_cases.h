// Attention steps for tests and for the micro benchmark: block tables over a pool with shuffled ids, made from a seed,
// and the contents of such a pool. Plain data; owns all storage.
//
// Slots that no row of the step may see hold NaN where nothing has been written (behind the last visible slot of a
// block, the null block) and the largest number where something has (before every window), so that whoever counts them
// is found out.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "attention/plan/share_plan.h"

namespace coppice::test {

struct CaseSequence {
  std::int32_t first_position = 0;
  int n_rows = 1;
  std::vector<kv::BlockId> table;  ///< covers [0, first_position + n_rows)
  std::vector<kv::BothWays> both_ways = {};

  std::int64_t length() const { return std::int64_t{first_position} + n_rows; }
};

struct AttentionCase {
  std::string name;
  attention::HeadShape heads{.n_head = 9, .n_kv_head = 3, .head_dim = 64, .scale = 0.125F};  // SmolLM2-135M
  kv::GroupSpec group;
  int block_size = 32;
  int n_blocks = 1;  ///< of the pool, the null block included
  std::vector<CaseSequence> sequences;

  int n_rows() const;
  /// Rows in the sequences' order. Borrows the tables.
  std::vector<attention::SequenceRows> rows() const;
  /// Distinct table entries that some row sees.
  int unique_blocks() const;
  /// Distinct slots that some row sees.
  std::int64_t unique_slots() const;
};

/// Hands out each id of a pool once, in random order; never the null block.
class ShuffledIds {
 public:
  ShuffledIds(int n_blocks, std::mt19937_64& random);
  kv::BlockId next() { return ids_.at(used_++); }

 private:
  std::vector<kv::BlockId> ids_;
  std::size_t used_ = 0;
};

/// A path that shares its first tokens with an earlier one: whole blocks only, as the cache does.
struct Path {
  int parent = -1;    ///< index of an earlier path; -1: shares nothing
  int shared = 0;     ///< tokens
  int length = 1;     ///< tokens, its rows included
  int n_rows = 1;     ///< the last ones
  bool reads = true;  ///< false: only a stem for others, no sequence of the step
};

/// The paths' tables over a pool just large enough, ids shuffled.
AttentionCase make_case(std::string name, std::span<const Path> paths, int block_size, const kv::GroupSpec& group,
                        std::uint64_t seed);

/// The steps that bench/README.md speaks of.
std::vector<AttentionCase> named_cases(int block_size = 32);
/// REQUIRES: one of named_cases has this name.
AttentionCase named_case(const std::string& name, int block_size = 32);

/// Bounds of random_case.
struct RandomShape {
  int max_sequences = 12;
  int max_length = 400;    ///< tokens before the step's rows
  int max_chunk = 40;      ///< rows of a sequence
  bool sliding = false;    ///< some window, with dropped entries
  bool both_ways = false;  ///< some rows see each other both ways
};

/// A random tree of any shape that the plan allows: nested and partial sharing, blocks that are shared where the ones
/// before them are not, windows whose dropped entries are null in one table and real in another.
AttentionCase random_case(const RandomShape& shape, std::mt19937_64& random);

/// The same case with other physical ids.
AttentionCase shuffled(const AttentionCase& c, std::mt19937_64& random);

/// A pool's contents, [n_blocks][block_size][n_kv_head] heads: values of about 1 either way, whatever the format.
struct PoolData {
  std::vector<std::byte> keys, values;
  attention::PoolView view;
  PoolData(const AttentionCase& c, std::uint64_t seed, attention::KvFormat format = attention::KvFormat::kF16);
};

/// [n_rows, n_head, head_dim]
std::vector<float> make_queries(const AttentionCase& c, std::uint64_t seed);

/// COPPICE_SEED or a random one; prints the line that replays the test.
std::uint64_t test_seed();

}  // namespace coppice::test
