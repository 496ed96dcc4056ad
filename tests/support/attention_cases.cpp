#include "support/attention_cases.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "support/normal.h"

namespace coppice::test {

namespace {

/// In [low, high].
int pick(std::mt19937_64& random, int low, int high) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

bool chance(std::mt19937_64& random, int percent) {
  return pick(random, 0, 99) < percent;
}

int ceil_div(std::int64_t a, int b) {
  return static_cast<int>((a + b - 1) / b);
}

/// Table entries that some row of the sequence sees.
std::pair<std::size_t, std::size_t> visible_entries(const AttentionCase& c, const CaseSequence& s) {
  return {static_cast<std::size_t>(c.group.first_visible(s.first_position) / c.block_size),
          static_cast<std::size_t>(ceil_div(s.length(), c.block_size))};
}

std::vector<Path> alike(int n, Path path) {
  return std::vector<Path>(static_cast<std::size_t>(n), path);
}

std::vector<Path> after(Path stem, std::vector<Path> paths) {
  paths.insert(paths.begin(), stem);
  return paths;
}

/// Two branches of 1,024 + 1,024 tokens with 8 decodes each; three of the first branch share 200 tokens more.
std::vector<Path> two_branches() {
  std::vector<Path> p = {{.length = 1024, .reads = false},
                         {.parent = 0, .shared = 1024, .length = 2048, .reads = false},
                         {.parent = 0, .shared = 1024, .length = 2048, .reads = false},
                         {.parent = 1, .shared = 2048, .length = 2048 + 200, .reads = false}};
  for (int i = 0; i < 8; ++i) {
    if (i < 3) {
      p.push_back({.parent = 3, .shared = 2248, .length = 2280 + 5 * i});
    } else {
      p.push_back({.parent = 1, .shared = 2048, .length = 2100 + 7 * i});
    }
  }
  for (int i = 0; i < 8; ++i) p.push_back({.parent = 2, .shared = 2048, .length = 2075 + 11 * i});
  return p;
}

constexpr std::uint16_t kHalfNaN = 0x7e00;
constexpr std::uint16_t kHalfMax = 0x7bff;  // 65504

/// In about (-1, 1), roughly bell-shaped.
float random_value(std::uint64_t& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  const std::uint64_t r = state >> 24;
  const int sum = static_cast<int>(r & 1023) + static_cast<int>(r >> 10 & 1023) + static_cast<int>(r >> 20 & 1023);
  return static_cast<float>(sum - 1535) / 1024.0F;
}

std::uint16_t half(float x) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}

/// One slot's heads in any format, whose bytes are chosen here one by one.
class SlotWriter {
 public:
  SlotWriter(attention::KvFormat format, const attention::HeadShape& heads)
      : format_(format),
        n_heads_(static_cast<std::size_t>(heads.n_kv_head)),
        head_dim_(static_cast<std::size_t>(heads.head_dim)),
        head_bytes_(head_bytes(format, heads.head_dim)) {}

  std::size_t row_bytes() const { return n_heads_ * head_bytes_; }

  /// What nobody may see: all values are this f16 number.
  void fill(std::byte* row, std::uint16_t value) const {
    for (std::size_t h = 0; h < n_heads_; ++h, row += head_bytes_) {
      if (format_ == attention::KvFormat::kF16) {
        for (std::size_t i = 0; i < head_dim_; ++i) std::memcpy(row + 2 * i, &value, 2);
      } else {
        std::memcpy(row, &value, 2);
        std::fill_n(row + 2, head_bytes_ - 2, std::byte{0x77});
      }
    }
  }

  void randomise(std::byte* row, std::uint64_t& state) const {
    for (std::size_t h = 0; h < n_heads_; ++h, row += head_bytes_) {
      if (format_ == attention::KvFormat::kF16) {
        for (std::size_t i = 0; i < head_dim_; ++i) {
          const std::uint16_t value = half(random_value(state));
          std::memcpy(row + 2 * i, &value, 2);
        }
        continue;
      }
      const std::uint16_t scale = half((1.0F + 0.25F * random_value(state)) / 100.0F);
      std::memcpy(row, &scale, 2);
      for (std::size_t i = 2; i < head_bytes_; ++i) {
        if (format_ == attention::KvFormat::kInt8) {
          row[i] = static_cast<std::byte>(static_cast<std::int8_t>(80.0F * random_value(state)));
        } else {
          random_value(state);
          row[i] = static_cast<std::byte>(state >> 40);
        }
      }
    }
  }

 private:
  attention::KvFormat format_;
  std::size_t n_heads_, head_dim_, head_bytes_;
};

}  // namespace

int AttentionCase::n_rows() const {
  return std::accumulate(sequences.begin(), sequences.end(), 0,
                         [](int n, const CaseSequence& s) { return n + s.n_rows; });
}

std::vector<attention::SequenceRows> AttentionCase::rows() const {
  std::vector<attention::SequenceRows> all;
  int row = 0;
  for (const CaseSequence& s : sequences) {
    all.push_back({row, s.n_rows, s.first_position, {s.table, block_size}, s.both_ways});
    row += s.n_rows;
  }
  return all;
}

int AttentionCase::unique_blocks() const {
  std::set<kv::BlockId> seen;
  for (const CaseSequence& s : sequences) {
    const auto [begin, end] = visible_entries(*this, s);
    for (std::size_t b = begin; b < end; ++b) seen.insert(s.table[b]);
  }
  return static_cast<int>(seen.size());
}

std::int64_t AttentionCase::unique_slots() const {
  std::vector<bool> seen(static_cast<std::size_t>(n_blocks) * static_cast<std::size_t>(block_size));
  for (const attention::SequenceRows& s : rows()) {
    for (std::int64_t p = group.first_visible(s.first_position); p < s.first_position + s.n_rows; ++p) {
      seen[static_cast<std::size_t>(s.table.slot(p))] = true;
    }
  }
  return std::ranges::count(seen, true);
}

ShuffledIds::ShuffledIds(int n_blocks, std::mt19937_64& random) : ids_(static_cast<std::size_t>(n_blocks - 1)) {
  std::iota(ids_.begin(), ids_.end(), kv::kNullBlock + 1);
  std::ranges::shuffle(ids_, random);
}

AttentionCase make_case(std::string name, std::span<const Path> paths, int block_size, const kv::GroupSpec& group,
                        std::uint64_t seed) {
  AttentionCase c{.name = std::move(name), .group = group, .block_size = block_size};
  for (const Path& p : paths) c.n_blocks += ceil_div(p.length, block_size) - p.shared / block_size;
  std::mt19937_64 random(seed);
  ShuffledIds ids(c.n_blocks, random);
  std::vector<std::vector<kv::BlockId>> tables;
  for (const Path& p : paths) {
    std::vector<kv::BlockId> table;
    if (p.parent >= 0) {
      const auto& parent = tables[static_cast<std::size_t>(p.parent)];
      table.assign(parent.begin(), parent.begin() + p.shared / block_size);
    }
    while (std::ssize(table) < ceil_div(p.length, block_size)) table.push_back(ids.next());
    tables.push_back(table);
    if (!p.reads) continue;
    const int first = p.length - p.n_rows;
    std::fill_n(table.begin(), group.first_visible(first) / block_size, kv::kNullBlock);
    c.sequences.push_back({.first_position = first, .n_rows = p.n_rows, .table = std::move(table)});
  }
  return c;
}

std::vector<AttentionCase> named_cases(int block_size) {
  std::vector<AttentionCase> cases;
  const auto add = [&](const char* name, const std::vector<Path>& paths) {
    cases.push_back(make_case(name, paths, block_size, {}, 1 + cases.size()));
  };
  const auto stem = [](int length) { return Path{.length = length, .reads = false}; };
  add("16 decodes on a 2,048 prefix", after(stem(2048), alike(16, {.parent = 0, .shared = 2048, .length = 2068})));
  add("8 unrelated at 400", alike(8, {.length = 400}));
  add("8 unrelated at 1,500", alike(8, {.length = 1500}));
  add("8+8 on two branches, 3 sharing 200 more", two_branches());
  std::vector<Path> deep = after(stem(30'000), alike(16, {.parent = 0, .shared = 30'000, .length = 30'001}));
  for (const Path& tail : alike(60, {.length = 20})) deep.push_back(tail);
  add("30,000 prefix + sixty 20-token tails", deep);
  add("prefill 512 at depth 2,048", {{.length = 2048 + 512, .n_rows = 512}});
  add("prefill 512 at depth 0", {{.length = 512, .n_rows = 512}});
  add("mixed: 500-row chunk + 8 decodes on its prefix",
      after({.length = 2048 + 500, .n_rows = 500}, alike(8, {.parent = 0, .shared = 2048, .length = 2100})));
  add("one decode at 2,048", {{.length = 2048}});
  cases.push_back(make_case("16 decodes on a 2,048 prefix, window 512",
                            after(stem(2048), alike(16, {.parent = 0, .shared = 2048, .length = 2068})), block_size,
                            {.kind = kv::GroupKind::kSliding, .window = 512}, 1 + cases.size()));
  return cases;
}

AttentionCase named_case(const std::string& name, int block_size) {
  for (AttentionCase& c : named_cases(block_size)) {
    if (c.name == name) return std::move(c);
  }
  throw std::invalid_argument("no attention case is named " + name);
}

AttentionCase random_case(const RandomShape& shape, std::mt19937_64& random) {
  AttentionCase c{.name = "random", .block_size = 8 << pick(random, 0, 3)};
  const int bs = c.block_size;
  if (shape.sliding) {
    c.group = {.kind = kv::GroupKind::kSliding, .window = pick(random, 1, shape.max_length), .layers = {}};
    c.group.chunked = chance(random, 40);
  }
  c.group.causal = shape.both_ways && chance(random, 25);
  const int n = pick(random, 1, shape.max_sequences);
  const int most_entries = ceil_div(shape.max_length + shape.max_chunk, bs);
  c.n_blocks = 1 + n * most_entries;
  ShuffledIds ids(c.n_blocks, random);
  const int shares = chance(random, 20) ? 0 : pick(random, 50, 100);
  const int chunks = chance(random, 50) ? 0 : pick(random, 1, 50);
  for (int i = 0; i < n; ++i) {
    CaseSequence s{.first_position = pick(random, 0, shape.max_length - 1)};
    if (chance(random, chunks)) s.n_rows = pick(random, 1, shape.max_chunk);
    for (std::int32_t p = s.first_position; shape.both_ways && p < s.length();) {
      const std::int32_t end = pick(random, p + 1, static_cast<int>(s.length()));
      if (chance(random, 60)) s.both_ways.push_back({p, end});
      p = end;
    }
    const auto entries = static_cast<std::size_t>(ceil_div(s.length(), bs));
    if (i > 0 && chance(random, shares)) {
      const auto& parent = c.sequences[static_cast<std::size_t>(pick(random, 0, i - 1))].table;
      // The last shared block may be partly filled, and either sequence may see more of it.
      const auto shared = static_cast<std::size_t>(pick(random, 0, static_cast<int>(std::min(entries, parent.size()))));
      s.table.assign(parent.begin(), parent.begin() + static_cast<std::ptrdiff_t>(shared));
      if (chance(random, 20)) {  // an own copy of the first blocks, as after computing them twice at once
        const int own = pick(random, 0, static_cast<int>(shared));
        for (int b = 0; b < own; ++b) s.table[static_cast<std::size_t>(b)] = ids.next();
      }
    }
    while (s.table.size() < entries) s.table.push_back(ids.next());
    c.sequences.push_back(std::move(s));
  }
  for (CaseSequence& s : c.sequences) {  // last, so that nobody inherits another's nulls
    const auto dropped = static_cast<int>(visible_entries(c, s).first);
    std::fill_n(s.table.begin(), pick(random, 0, dropped), kv::kNullBlock);
  }
  return c;
}

AttentionCase shuffled(const AttentionCase& c, std::mt19937_64& random) {
  ShuffledIds ids(c.n_blocks, random);
  std::unordered_map<kv::BlockId, kv::BlockId> to = {{kv::kNullBlock, kv::kNullBlock}};
  AttentionCase out = c;
  for (CaseSequence& s : out.sequences) {
    for (kv::BlockId& id : s.table) {
      if (!to.contains(id)) to.emplace(id, ids.next());
      id = to.at(id);
    }
  }
  return out;
}

PoolData::PoolData(const AttentionCase& c, std::uint64_t seed, attention::KvFormat format) {
  const SlotWriter writer(format, c.heads);
  const std::size_t row = writer.row_bytes();
  const auto slots = static_cast<std::size_t>(c.n_blocks) * static_cast<std::size_t>(c.block_size);
  for (auto* all : {&keys, &values}) {
    all->resize(slots * row);
    for (std::size_t slot = 0; slot < slots; ++slot) writer.fill(all->data() + slot * row, kHalfNaN);
  }
  std::vector<bool> filled(slots);
  for (const attention::SequenceRows& s : c.rows()) {
    for (std::int64_t p = c.group.first_visible(s.first_position); p < s.first_position + s.n_rows; ++p) {
      const auto slot = static_cast<std::size_t>(s.table.slot(p));
      if (filled[slot]) continue;
      filled[slot] = true;
      std::uint64_t state = seed + slot * 0x9e3779b97f4a7c15ULL;
      writer.randomise(keys.data() + slot * row, state);
      writer.randomise(values.data() + slot * row, state);
    }
  }
  // A block is filled in order: what lies before a visible slot is somebody's, and finite.
  const auto block_size = static_cast<std::size_t>(c.block_size);
  for (std::size_t slot = slots - 1; slot > 0; --slot) {
    if (!filled[slot] || slot % block_size == 0 || filled[slot - 1]) continue;
    filled[slot - 1] = true;
    writer.fill(keys.data() + (slot - 1) * row, kHalfMax);
    writer.fill(values.data() + (slot - 1) * row, kHalfMax);
  }
  view = {.format = format,
          .block_size = c.block_size,
          .row_bytes = row,
          .block_stride = row * block_size,
          .keys = keys.data(),
          .values = values.data()};
}

std::vector<float> make_queries(const AttentionCase& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  test::Normal normal(0.0F, 2.0F);
  std::vector<float> q(static_cast<std::size_t>(c.n_rows()) * static_cast<std::size_t>(c.heads.n_head) *
                       static_cast<std::size_t>(c.heads.head_dim));
  for (float& x : q) x = normal(random);
  return q;
}

std::uint64_t test_seed() {
  const char* given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("COPPICE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace coppice::test
