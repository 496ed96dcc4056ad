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

constexpr std::string_view kAmx = "AMX";

struct Choice {
  std::int64_t cpu;  ///< what of Highway's this CPU has and kernels are compiled for; lower bits are better
  std::vector<std::string_view> names;
  std::string unheeded;
  std::atomic<std::int64_t> allowed;
  std::atomic<bool> amx;
};

bool allow(Choice& choice, std::string_view name) {
  const auto found = std::ranges::find(choice.names, name);
  if (found == choice.names.end()) name = choice.names.front();
  std::int64_t allowed = choice.cpu;
  while (name != kAmx && hwy::TargetName(allowed & -allowed) != name) allowed &= allowed - 1;
  choice.amx = name == kAmx;
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
    for (std::int64_t bits = choice.cpu; bits != 0; bits &= bits - 1) {
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
  return choice.amx ? kAmx : hwy::TargetName(allowed & -allowed);
}

bool amx() {
  return choose().amx;
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
