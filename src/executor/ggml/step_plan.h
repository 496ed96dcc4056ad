// StepPlan: how a batch becomes attention calls. Pure data: no tensors, testable alone.
//
// The executor may order a step's rows as it likes (every input is filled by index), so rows are sorted until each
// attention call, a *unit*, has its rows side by side. A unit is either
//   a sharing group   one stream; the rows of one sequence or of several that share blocks; its keys are the union of
//                     their blocks, each once; rows see theirs by mask;
//   parallel streams  unrelated sequences of one row each and about equal length, side by side in one call, each
//                     reading its own keys only.
// A step's shape (StepShape) decides its graph; block ids, masks, positions and tokens are refilled each step.
//
// Invariants
//  1. Units cover the plan's rows in order, without gaps. Padding rows (batch_row -1) see no key.
//  2. The shape depends on lengths and on who shares with whom, never on block ids: physically shuffled blocks give
//     the same calls, bit for bit.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan/share_plan.h"
#include "executor/executor.h"

namespace coppice::executor {

struct UnitShape {
  int n_streams = 1;
  int n_rows = 0;         ///< of each stream
  std::vector<int> keys;  ///< [n_groups] of each stream, padded
  auto operator<=>(const UnitShape&) const = default;
};

struct StepShape {
  int n_rows = 0;
  int n_outputs = 0;  ///< rows whose logits are computed
  std::vector<UnitShape> units;
  auto operator<=>(const StepShape&) const = default;
};

/// Where one sequence's visible blocks lie among its stream's keys, for one group.
struct KeyColumns {
  std::vector<int> columns;  ///< [table entries]: block column, or -1: not gathered
};

struct UnitSequence {
  int sequence = 0;   ///< index into Batch::sequences
  int first_row = 0;  ///< of the plan
};

struct Unit {
  int first_row = 0;
  std::vector<UnitSequence> sequences;
  std::vector<std::vector<kv::BlockId>> blocks;  ///< [n_groups][n_streams * keys / block_size], null-padded
  std::vector<std::vector<KeyColumns>> columns;  ///< [n_groups][sequences], columns within the stream
};

struct StepPlan {
  StepShape shape;
  std::vector<Unit> units;                ///< as shape.units
  std::vector<std::int32_t> batch_row;    ///< [n_rows] row of the batch, -1: padding
  std::vector<std::int32_t> output_rows;  ///< [n_outputs] plan rows, in the order of Batch::logit_rows, then padding
};

/// What a backend wants of the plan.
struct PlanPolicy {
  bool units = true;  ///< false: one unit, all rows in the batch's order; the backend finds its keys itself
  bool share = true;  ///< false: a unit per sequence
  bool pad = true;    ///< false: exact rows and keys, so that nothing is masked but the future
};

/// REQUIRES: batch valid (checked by the executor).
StepPlan plan_step(const Batch& batch, std::span<const kv::GroupSpec> groups, const PlanPolicy& policy);

using attention::first_visible;

}  // namespace coppice::executor
