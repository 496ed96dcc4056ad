#include "simd/target.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "simd/amx.h"

namespace coppice::simd {

namespace {

// Emulated tiles are there for tests, which run on the other sets without them.
#ifdef COPPICE_AMX_EMULATED
constexpr bool kBestAlone = true;
#else
constexpr bool kBestAlone = false;
#endif
constexpr std::string_view kAmx = "AMX", kDotprod = "NEON_DOTPROD", kI8mm = "NEON_I8MM";  // which Highway doesn't know

struct Choice {
  std::int64_t cpu;  ///< what of Highway's this CPU has and kernels are compiled for; lower bits are better
  std::vector<std::string_view> names;
  std::string unheeded;
  std::atomic<std::int64_t> allowed;
  std::atomic<bool> amx;
  std::atomic<NeonBytes> neon_bytes;
};

bool allow(Choice& choice, std::string_view name) {
  const auto found = std::ranges::find(choice.names, name);
  if (found == choice.names.end()) name = choice.names.front();
  std::int64_t allowed = choice.cpu;
  choice.amx = name == kAmx;
  choice.neon_bytes = name == kI8mm ? NeonBytes::kI8mm : name == kDotprod ? NeonBytes::kDotprod : NeonBytes::kNone;
  const bool all = choice.amx || choice.neon_bytes != NeonBytes::kNone;
  while (!all && hwy::TargetName(allowed & -allowed) != name) allowed &= allowed - 1;
  choice.allowed = allowed;
  hwy::GetChosenTarget().Update(allowed);
  return found != choice.names.end();
}

/// Names are in capitals.
std::string in_capitals(std::string name) {
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return name;
}

std::string with_names(std::string text, const std::vector<std::string_view>& names) {
  text += ", which is none of";
  for (const std::string_view name : names) text.append(name == names.front() ? " " : ", ").append(name);
  return text;
}

/// Settles the choice. Highway is asked once only: each call of SupportedTargets() makes dispatch forget what was ruled
/// out, by DisableTargets() too (1.0.3).
Choice& choose() {
  static Choice choice;
  static const bool chosen = [] {
    choice.cpu = hwy::SupportedTargets() & HWY_TARGETS;
    if ((choice.cpu & HWY_AVX3_DL) != 0 && request_amx()) choice.names.push_back(kAmx);
    const NeonBytes neon = neon_bytes_of_cpu();
    if (neon == NeonBytes::kI8mm) choice.names.push_back(kI8mm);
    if (neon != NeonBytes::kNone) choice.names.push_back(kDotprod);
    for (std::int64_t bits = choice.cpu; bits != 0; bits &= bits - 1) {
      if (kBestAlone && !choice.names.empty()) break;
      choice.names.emplace_back(hwy::TargetName(bits & -bits));
    }
    const char* env = std::getenv("COPPICE_SIMD");
    const std::string wanted = env != nullptr ? env : "";
    if (!allow(choice, in_capitals(wanted)) && !wanted.empty()) choice.unheeded = with_names(wanted, choice.names);
    return true;
  }();
  (void)chosen;
  return choice;
}

}  // namespace

void choose_target() {
  choose();
}

std::string_view target() {
  const Choice& choice = choose();
  const std::int64_t allowed = choice.allowed;
  if (choice.amx) return kAmx;
  const NeonBytes neon = choice.neon_bytes;
  if (neon != NeonBytes::kNone) return neon == NeonBytes::kI8mm ? kI8mm : kDotprod;
  return hwy::TargetName(allowed & -allowed);
}

bool amx() {
  return choose().amx;
}

NeonBytes neon_bytes() {
  return choose().neon_bytes;
}

std::string_view unheeded() {
  return choose().unheeded;
}

const std::vector<std::string_view>& targets() {
  return choose().names;
}

bool use(std::string_view name) {
  return allow(choose(), name);
}

}  // namespace coppice::simd
