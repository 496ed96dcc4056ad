#include "port/turn.h"

namespace coppice::port {

namespace {

thread_local Turn* current_turn = nullptr;

}  // namespace

void set_turn(Turn* turn) noexcept {
  current_turn = turn;
}

void between_steps() noexcept {
  if (current_turn != nullptr) current_turn->between_steps();
}

bool unwanted() noexcept {
  return current_turn != nullptr && current_turn->unwanted();
}

}  // namespace coppice::port
