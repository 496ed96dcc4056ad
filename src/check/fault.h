// Deliberate faults, compiled in only for tests that prove that others would see them (COPPICE_FAULTS). A part of the
// program that has some lists them in an enum of its own, whose first is kNone.
#pragma once

namespace coppice::check {

#ifdef COPPICE_FAULTS
inline constexpr bool kFaultBuild = true;
template <class Fault>
inline Fault active_fault = Fault::kNone;
template <class Fault>
bool is_active(Fault fault) {
  return active_fault<Fault> == fault;
}
#else
inline constexpr bool kFaultBuild = false;
template <class Fault>
constexpr bool is_active(Fault) {
  return false;
}
#endif

}  // namespace coppice::check
