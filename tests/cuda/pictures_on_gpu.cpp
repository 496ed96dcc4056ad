// Prompts with pictures on the GPU against the executor on the CPU: embeddings in tokens' place, positions of three
// parts, rows that see each other both ways, planes of DeepStack; one prompt, then many on it, in one step. Weights are
// the same numbers in f32, so what is measured is rounding. Each of these things left out is a fault that must be seen.
// Prints a line a case; exits with 1 if an error is too large. Arguments: --small for compute-sanitizer, --only TEXT
// for the cases that have it in their name.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <utility>

#include "cuda/executor_program.h"
#include "executor/ggml/ggml_executor.h"
#include "support/executor_rig.h"

namespace coppice {
namespace {

using executor::Batch;
using executor::Executor;
using executor::RopePosition;
using executor::RowSource;
using test::ExecutorRig;
using test::RigSequence;
using test::Row;
using test::Want;

enum class Fault { kNone, kOtherRows, kScaledRows, kOneWay, kOneAxis, kNoPlanes };

struct Case {
  const char* name;
  test::TinyModel model;
  bool both_ways = false, axes = false;
};

/// What a prompt is made of, as the engine would tell it.
struct Prompt {
  std::vector<std::int32_t> symbols;  ///< a token, or -1 - r: the r-th of all pictures' rows
  std::vector<kv::BothWays> pictures;
  std::vector<RopePosition> positions;

  std::int32_t end() const { return static_cast<std::int32_t>(symbols.size()); }
  std::int32_t next_position() const {
    std::int32_t most = -1;
    for (const RopePosition& p : positions) most = std::max({most, p.time, p.height, p.width});
    return most + 1;
  }
  void add_tokens(int n, std::mt19937& random) {
    const std::int32_t first = next_position();
    for (std::int32_t i = 0; i < n; ++i) {
      symbols.push_back(static_cast<std::int32_t>(random() % 320));
      positions.push_back({first + i, first + i, first + i});
    }
  }
  void add_picture(std::int32_t height, std::int32_t width, std::int32_t first_row) {
    const std::int32_t first = next_position(), begin = end();
    for (std::int32_t i = 0; i < height * width; ++i) {
      symbols.push_back(-1 - first_row - i);
      positions.push_back({first, first + i / width, first + i % width});
    }
    pictures.push_back({begin, end()});
  }
};

class Show {
 public:
  Show(Executor& executor, const Case& c, Fault fault, std::uint32_t shuffle, bool small)
      : rig_(executor, shuffle), case_(c), fault_(fault), random_(7), small_(small) {
    std::normal_distribution<float> normal(0.0F, 0.5F);
    const auto size = static_cast<std::size_t>(executor.info().embedding_size);
    const auto n_embd = static_cast<std::size_t>(executor.info().n_embd);
    for (int i = 0; i < kRows; ++i) {
      Row& row = rows_.emplace_back(size);
      for (float& x : row) x = normal(random_) * (fault == Fault::kScaledRows ? 4.0F : 1.0F);
      if (fault == Fault::kNoPlanes) std::fill(row.begin() + static_cast<std::ptrdiff_t>(n_embd), row.end(), 0.0F);
    }
  }

  /// Logits of all rows.
  std::vector<Row> answers() {
    Prompt trunk;
    trunk.add_tokens(small_ ? 3 : 21, random_);
    trunk.add_picture(5, 6, 0);
    trunk.add_tokens(small_ ? 2 : 60, random_);
    if (!small_) trunk.add_picture(7, 11, 30);  // over block borders
    if (!small_) trunk.add_picture(3, 4, 10);   // behind another, with rows that were seen before
    trunk.add_tokens(9, random_);
    RigSequence first;
    feed(first, trunk, small_ ? 64 : 256);
    // Others on it, each with a text and a picture of its own, the first of these row by row where a picture may be
    // cut.
    std::vector<Prompt> prompts;
    std::vector<RigSequence> streams;
    const int n_streams = small_ ? 3 : 7;
    for (int i = 0; i < n_streams; ++i) {
      Prompt& p = prompts.emplace_back(trunk);
      const auto from = trunk.end() - i;
      p.symbols.resize(static_cast<std::size_t>(from));
      p.positions.resize(static_cast<std::size_t>(from));
      streams.push_back(rig_.fork(first, from));
      p.add_tokens(2 + i, random_);
      p.add_picture(2, 3 + i, 5 * i);
      p.add_tokens(4, random_);
      if (i % 3 == 1) feed(streams.back(), p, case_.both_ways ? 40 : 1);
    }
    std::vector<Part> parts;
    for (int i = 0; i < n_streams; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (i % 3 != 1) parts.push_back({&streams[at], &prompts[at], streams[at].len, prompts[at].end()});
    }
    keep(step(parts));  // many pictures in a step
    for (int i = 0; i < (small_ ? 2 : 8); ++i) {
      parts.clear();
      for (std::size_t s = 0; s < streams.size(); ++s) {
        prompts[s].add_tokens(1, random_);
        parts.push_back({&streams[s], &prompts[s], streams[s].len, prompts[s].end()});
      }
      keep(step(parts));
    }
    return std::move(all_);
  }

 private:
  static constexpr int kRows = 120;
  struct Part {
    RigSequence* sequence;
    const Prompt* prompt;
    std::int32_t begin, end;
  };

  void keep(std::vector<Row> rows) { std::ranges::move(rows, std::back_inserter(all_)); }

  /// What isn't there yet, in steps of at most `chunk` rows, or of a whole picture.
  void feed(RigSequence& s, const Prompt& p, int chunk) {
    while (s.len < p.end()) {
      std::int32_t end = std::min(p.end(), s.len + chunk);
      for (const kv::BothWays& picture : p.pictures) {
        if (case_.both_ways && picture.begin < end && end < picture.end)
          end = picture.begin > s.len ? picture.begin : picture.end;
      }
      keep(step({{&s, &p, s.len, end}}));
    }
  }

  std::vector<Row> step(const std::vector<Part>& parts) {
    std::vector<std::vector<kv::Token>> tokens;
    std::vector<test::RigPart> of_rig;
    for (const Part& part : parts) {
      std::vector<kv::Token>& some = tokens.emplace_back();
      for (std::int32_t i = part.begin; i < part.end; ++i) some.push_back(std::max(0, symbol(part, i)));
    }
    for (std::size_t i = 0; i < parts.size(); ++i) of_rig.push_back({parts[i].sequence, tokens[i], Want::kAll});
    Batch batch = rig_.batch(of_rig);
    std::size_t row = 0;
    for (std::size_t s = 0; s < parts.size(); ++s) {
      for (std::int32_t i = parts[s].begin; i < parts[s].end; ++i, ++row) {
        if (case_.axes && fault_ != Fault::kOneAxis)
          batch.positions.push_back(parts[s].prompt->positions[static_cast<std::size_t>(i)]);
        if (symbol(parts[s], i) < 0) show(batch, row, -1 - symbol(parts[s], i));
      }
      if (!case_.both_ways || fault_ == Fault::kOneWay) continue;
      for (const kv::BothWays& picture : parts[s].prompt->pictures) {
        if (picture.begin >= parts[s].begin && picture.end <= parts[s].end)
          batch.sequences[s].both_ways.push_back(picture);
      }
    }
    return rig_.run(batch);
  }

  static std::int32_t symbol(const Part& part, std::int32_t i) {
    return part.prompt->symbols[static_cast<std::size_t>(i)];
  }
  void show(Batch& batch, std::size_t row, std::int32_t number) {
    if (fault_ == Fault::kOtherRows) number = (number + 1) % kRows;
    batch.rows[row] = RowSource::embedding(static_cast<std::int32_t>(batch.embeddings.size()));
    batch.embeddings.emplace_back(rows_[static_cast<std::size_t>(number)]);
  }

  ExecutorRig rig_;
  const Case& case_;
  Fault fault_;
  std::mt19937 random_;
  bool small_;
  std::vector<Row> rows_, all_;
};

struct Distance {
  double mean = 0, worst = 0;
};
Distance distance(const std::vector<Row>& got, const std::vector<Row>& expected) {
  Distance d;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double of_row = test::relative_rms(got.at(i), expected[i]);
    d.mean += of_row / static_cast<double>(expected.size());
    d.worst = of_row <= d.worst ? d.worst : of_row;  // NaN is not
  }
  return d;
}

std::unique_ptr<Executor> on_cpu(const std::string& path) {
  executor::GgmlOptions o;
  o.attention = "tree";
  o.kv_bytes = std::size_t{64} << 20;
  o.n_threads = 1;
  return executor::load_ggml_executor(model::load_model(path), o, {});
}

constexpr double kRounded = 2e-2, kRoundedBytes = 4e-2;  // as in executor_on_gpu
constexpr std::uint32_t kShuffle = 20240229;

int check(const Case& c, bool small) {
  const std::string path = test::write_model(c.model);
  const auto cpu = on_cpu(path);
  const auto on_gpu = [&](const char* kv_format, std::size_t state_bytes) {
    return test::on_gpu(path, {.kv_format = kv_format, .kv_bytes = std::size_t{64} << 20, .state_bytes = state_bytes});
  };
  const auto answers = [&](Executor& e, Fault fault = Fault::kNone, std::uint32_t shuffle = kShuffle) {
    return Show(e, c, fault, shuffle, small).answers();
  };
  int failed = 0;
  const std::vector<Row> expected = answers(*cpu);
  const auto compare = [&](const char* what, Executor& e, double tolerance) {
    const Distance d = distance(answers(e), expected);
    failed += test::report(
        fmt::format("{}{}: mean {:.4f}, worst row {:.4f} of {}", c.name, what, d.mean, d.worst, expected.size()),
        d.mean <= tolerance && d.worst <= 4 * tolerance);
  };
  const auto gpu = on_gpu("f16", 0);
  compare("", *gpu, kRounded);
  failed += test::report(std::string(c.name) + ": the same bits again, and in other blocks",
                         answers(*gpu) == answers(*gpu, Fault::kNone, 1));
  compare(", in parts", *on_gpu("f16", c.both_ways ? 2 << 20 : 1), kRounded);
  compare(", int8", *on_gpu("int8", 0), kRoundedBytes);
  const auto must_see = [&](bool has_it, Fault fault, const char* what) {
    if (!has_it) return;
    const Distance d = distance(answers(*gpu, fault), expected);
    failed +=
        test::report(fmt::format("{}: {} is seen: worst row {:.4f}", c.name, what, d.worst), d.worst > 5 * kRounded);
  };
  must_see(true, Fault::kOtherRows, "another row of the picture");
  must_see(true, Fault::kScaledRows, "rows that are scaled");
  must_see(c.both_ways, Fault::kOneWay, "a picture that sees only backwards");
  must_see(c.axes, Fault::kOneAxis, "a picture in one line");
  must_see(cpu->info().embedding_size > cpu->info().n_embd, Fault::kNoPlanes, "a picture without planes");
  return failed;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](const char* name, auto change) {
    Case& c = all.emplace_back(Case{.name = name, .model = test::model_for_gpu()});
    change(c, c.model);
  };
  add("llama (SmolVLM, InternVL, Pixtral)", [](Case&, auto&) {});
  add("gemma3, both ways", [](Case& c, auto& m) {
    c.both_ways = true;
    m.architecture = "gemma3", m.qk_norm = test::TinyQkNorm::kHeads, m.norms_behind = true, m.head_dim = 256;
    m.n_layer = 7;
    m.settings = {{"attention.sliding_window", 96}};
  });
  add("qwen2vl, positions of three parts", [](Case& c, auto& m) {
    c.axes = true;
    m.architecture = "qwen2vl", m.qkv_biases = true;
    m.settings = {{"rope.dimension_sections", std::vector{8, 12, 12, 0}}};
  });
  add("qwen3vl, parts that take turns, planes", [](Case& c, auto& m) {
    c.axes = true;
    m.architecture = "qwen3vl", m.qk_norm = test::TinyQkNorm::kHeads, m.n_layer = 4;
    m.settings = {{"rope.dimension_sections", std::vector{12, 10, 10, 0}}, {"n_deepstack_layers", 2}};
  });
  add("muse-glimmer, normalised tokens", [](Case&, auto& m) {
    m.architecture = "muse-glimmer", m.n_layer = 4, m.qk_norm = test::TinyQkNorm::kHeads, m.norms_behind = true;
    m.gate = test::TinyGate::kValues, m.tied = false;
    m.settings = {{"attention.sliding_window", 96}, {"logit_scale", 0.4F}};
  });
  return all;
}

int run(int argc, char** argv) {
  const bool small = test::is_small(argc, argv);
  if (small) --argc, ++argv;
  const std::string only = argc == 3 && std::strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  int failed = 0;
  for (const Case& c : cases()) {
    if (std::string(c.name).find(only) != std::string::npos) failed += check(c, small);
  }
  return failed;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_checks(argc, argv, coppice::run);
}
