// Rope: rotary position embedding (RoFormer, Su et al. 2021, section 3.4.2). Pair i of a head turns by position * scale
// / (base^(2 i / dims) * factor[i]). Positions may have three parts, each of which turns its own pairs (M-RoPE:
// Qwen2-VL, Wang et al. 2024, section 2.1).
//
// Immutable; any thread may use it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace coppice::attention {

/// YaRN (Peng et al. 2023, section 3.2): pairs that turn more often than beta_fast times in the original context are
/// not scaled, those that turn less often than beta_slow times are, between the two lies a ramp.
struct Yarn {
  double beta_fast = 32, beta_slow = 1;
  double original_context = 0;  ///< tokens
  bool whole_pairs = true;      ///< the ramp begins and ends at pairs, not between them
};

/// Time, height and width: parts of a position.
using RopeAxes = std::array<std::int32_t, 3>;

struct RopeShape {
  bool halves = false;  ///< pair i is values i and i + dims / 2 of a head; otherwise the neighbours 2 i and 2 i + 1
  int dims = 0;         ///< of each head, from its start; the rest doesn't turn. Even
  double base = 10000, scale = 1;
  std::span<const float> factors = {};  ///< [dims / 2], or empty: all 1
  std::optional<Yarn> yarn = {};
  double magnitude = 1;              ///< what turned values are multiplied by
  std::array<int, 3> sections = {};  ///< pairs that turn by each part, dims / 2 in all; zeros: positions have one part
  bool interleaved = false;          ///< parts take turns from pair to pair; otherwise each has its pairs side by side
};

class Rope {
 public:
  /// Reads the factors, keeps nothing of them. REQUIRES: base, scale, factors and magnitude are positive; with YaRN the
  /// base is above 1.
  explicit Rope(const RopeShape& shape);

  bool halves() const { return halves_; }
  int dims() const { return 2 * static_cast<int>(angles_.size()); }
  double base() const { return base_; }
  double angle(int pair) const { return angles_[static_cast<std::size_t>(pair)]; }  ///< of position 1
  /// Floats of a turn.
  std::size_t turn_size() const { return 4 * angles_.size(); }

  bool has_axes() const { return !axes_.empty(); }  ///< positions have three parts
  /// [dims / 2] The part of a position that turns the pair; empty: positions have one.
  std::span<const std::uint8_t> axes() const { return axes_; }

  /// What values at a position are multiplied by, and then what the pairs' other values are: [2, dims]. Their sum is
  /// the turned value.
  void turn(int position, float* to) const { turn({position, position, position}, to); }
  void turn(const RopeAxes& position, float* to) const;

 private:
  bool halves_;
  double base_, magnitude_;
  std::vector<double> angles_;  ///< [dims / 2] of position 1
  std::vector<std::uint8_t> axes_;
};

}  // namespace coppice::attention
