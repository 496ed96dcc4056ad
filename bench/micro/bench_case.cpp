#include "bench_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string_view>

#include "attention/reference.h"

namespace coppice::bench {

namespace {

constexpr std::uint64_t kSeed = 1;

struct ModelShape {
  std::string_view name;
  attention::HeadShape heads;
};

/// Each sequence decodes one token and sees `context` keys, in whole blocks.
test::AttentionCase decodes(const ModelShape& model, int context, int batch, bool shared) {
  std::vector<test::Path> paths;
  for (int i = 0; i < batch; ++i) {
    const bool follows = shared && i > 0;
    paths.push_back({.parent = follows ? 0 : -1, .shared = follows ? context : 0, .length = context});
  }
  constexpr int kBlockSize = 32;
  test::AttentionCase c = test::make_case(
      fmt::format("{}/{}k/batch{}/{}", model.name, context / 1024, batch, shared ? "shared" : "unrelated"), paths,
      kBlockSize, {}, kSeed);
  c.heads = model.heads;
  return c;
}

/// Heads lie side by side.
void clear_signs_of_scales(const BenchCase& c, std::byte* pool) {
  if (!attention::is_rotated(c.format)) return;
  const std::size_t head = attention::head_bytes(c.format, c.what.heads.head_dim);
  for (std::size_t at = 0; at < c.pool_bytes(); at += head) pool[at + 1] &= std::byte{0x7F};
}

}  // namespace

std::string BenchCase::name() const {
  return fmt::format("{}/{}", what.name, format_name(format));
}

std::size_t BenchCase::row_bytes() const {
  return static_cast<std::size_t>(what.heads.n_kv_head) * attention::head_bytes(format, what.heads.head_dim);
}

std::size_t BenchCase::pool_bytes() const {
  return 2 * static_cast<std::size_t>(what.n_blocks) * static_cast<std::size_t>(what.block_size) * row_bytes();
}

double BenchCase::multiply_adds() const {
  double pairs = 0;  // (row, visible key)
  for (const test::CaseSequence& s : what.sequences) {
    for (std::int64_t p = s.first_position; p < s.length(); ++p) {
      pairs += static_cast<double>(p + 1 - what.group.first_visible(p));
    }
  }
  return 2.0 * pairs * what.heads.n_head * what.heads.head_dim;
}

bool BenchCase::one_pass() const {
  std::size_t entries = 0;
  for (const test::CaseSequence& s : what.sequences) {
    if (s.n_rows != 1) return false;
    entries += s.table.size();
  }
  return entries == static_cast<std::size_t>(what.unique_blocks());
}

std::vector<BenchCase> all_cases(std::span<const attention::KvFormat> formats) {
  std::vector<BenchCase> cases;
  const auto add = [&](const test::AttentionCase& c) {
    for (const attention::KvFormat format : formats) {
      cases.push_back({c, format});
      if (attention::is_rotated(format)) cases.back().what.heads.scale /= 64.0F;  // codes are whole numbers
    }
  };
  const ModelShape models[] = {{"smollm2-135m", {9, 3, 64, 0.125F}}, {"8b", {32, 8, 128, 0.08838835F}}};
  for (const ModelShape& model : models) {
    for (const int context : {1024, 2048, 4096, 16384}) {
      for (const bool shared : {false, true}) {
        for (const int batch : {1, 2, 4, 8, 16}) {
          if (!shared || batch > 1) add(decodes(model, context, batch, shared));
        }
      }
    }
  }
  for (const test::AttentionCase& c : test::named_cases()) add(c);
  return cases;
}

std::size_t arena_bytes(std::span<const BenchCase> cases, std::size_t enough, std::size_t allowed) {
  std::size_t least = 0, wanted = 0;
  for (const BenchCase& c : cases) {
    least = std::max(least, c.pool_bytes());
    wanted = std::max(wanted, c.layers_of(enough) * c.pool_bytes());
  }
  return std::max(least, std::min(wanted, allowed));
}

void fill_f16(HugeBuffer& arena) {
  std::mt19937_64 random(kSeed);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= arena.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t bits = (random() & 0x83FF83FF83FF83FFU) | 0x3400340034003400U;  // random sign and mantissa
    std::memcpy(arena.data() + at, &bits, sizeof bits);
  }
}

Step make_step(const BenchCase& c, HugeBuffer& arena) {
  Step step{.c = c, .layers = {}, .q = test::make_queries(c.what, kSeed), .out = {}};
  step.out.resize(step.q.size());
  const std::size_t bytes = c.pool_bytes();
  for (std::size_t at = 0; at + bytes <= arena.size(); at += bytes) {
    clear_signs_of_scales(c, arena.data() + at);
    step.layers.push_back({.format = c.format,
                           .block_size = c.what.block_size,
                           .row_bytes = c.row_bytes(),
                           .block_stride = c.row_bytes() * static_cast<std::size_t>(c.what.block_size),
                           .keys = arena.data() + at,
                           .values = arena.data() + at + bytes / 2});
  }
  return step;
}

double distance_from_reference(const Step& step, std::size_t layer) {
  const attention::HeadShape& heads = step.c.what.heads;
  const auto sequences = step.c.what.rows();
  attention::SequenceRows first = sequences.front(), last = sequences.back();
  last.first_position += last.n_rows - 1;
  const std::size_t row = step.q.size() / static_cast<std::size_t>(step.c.what.n_rows());
  double wrong = 0, all = 0;
  for (attention::SequenceRows* s : {&first, &last}) {
    s->first_row = 0;
    s->n_rows = 1;
    const std::size_t at = s == &first ? 0 : step.q.size() - row;
    std::vector<float> expected(row);
    attend_reference(heads, step.layers[layer], step.c.what.group, std::span(s, 1), std::span(step.q).subspan(at, row),
                     expected);
    for (std::size_t i = 0; i < row; ++i) {
      const double difference = double{step.out[at + i]} - double{expected[i]};
      wrong += difference * difference;
      all += double{expected[i]} * double{expected[i]};
    }
  }
  return std::sqrt(wrong / all);
}

}  // namespace coppice::bench
