// StepLoop: the part of a step that its requests share: the plan, the executor's run of it, and what comes of it to
// each.
#include <algorithm>
#include <cstddef>
#include <exception>

#include "engine/refusals.h"
#include "engine/step_loop.h"
#include "engine/stopwatch.h"

namespace coppice::engine {

// The part that the step's requests share. An executor that works ahead gets its next step before the one that it runs
// is collected; and is told how to sample it afterwards, when the tokens before are known.
void StepLoop::compute() {
  begin_step();
  if (scheduler_.flying().step) collect();
  if (!scheduler_.planned().step) return;
  if (scheduler_.ahead()) tell_samples();
  scheduler_.launch();
  if (!scheduler_.ahead()) collect();
}

void StepLoop::begin_step() {
  PlannedStep& step = scheduler_.planned();
  Sequence* stuck = nullptr;
  try {
    stuck = plan();
    runner_.build(cache_, step);
    step.moves = tiers_.add_moves(runner_.ops_to_extend(), runner_.outside(), /*rests=*/step.rows == 0);
    publish_snapshot();  // a step may take seconds: who looks meanwhile must see what it holds
    if (step.rows > 0) {
      ++figures_.steps;
      prepare_samples();
    }
    if (step.rows > 0 || step.moves != 0) {
      runner_.submit(step);
      scheduler_.submitted();
    }
  } catch (const std::exception& error) {
    return fail_plan(error);
  }
  if (stuck == nullptr) return;
  scheduler_.release(*stuck);
  attempt(*stuck->request, [&] {
    end_for_room(*stuck, refused(Refusal::kTooLong, "the KV pool is too small for this prompt and one token"));
  });
}

// Returns whom there is no room for, whatever gives way; or nullptr. While the weights come back nobody has rows, and
// all but rows goes on.
Sequence* StepLoop::plan() {
  if (runner_.asleep() && (runner_.waking() || scheduler_.has_rows())) runner_.wake();
  if (runner_.asleep()) {
    runner_.block_ops();
    scheduler_.plan_no_rows();
    return nullptr;
  }
  Sequence* stuck = nullptr;
  do {
    stuck = scheduler_.plan(runner_.block_ops(), rates_.prefill_tokens_per_second(), now_);
  } while (stuck != nullptr && prefixes_.give_way(stuck->request->request, 1));
  return stuck;
}

// What they need besides logits is made while the step runs.
void StepLoop::prepare_samples() {
  for (const StepPart& part : scheduler_.planned().parts) {
    if (part.wanted.find(Purpose::kSample) == nullptr) continue;
    const Sequence& sequence = *part.sequence;
    if (sequence.request->request.max_tokens == 0) continue;
    for (int i = 0; i < sequence.n_samples; ++i)
      sequence.request->request.samples[static_cast<std::size_t>(sequence.sample + i)]->prepare();
  }
}

// Everybody who has rows in the step fails: the cache has slots for them, and nothing in them. If the plan failed
// before anybody had rows, the last in rank fails, or the next step would meet the same.
void StepLoop::fail_plan(const std::exception& error) {
  tiers_.not_moved(scheduler_.planned().moves);
  const auto& running = scheduler_.running();  // whoever fails leaves it
  const auto has_rows = [](const Sequence* sequence) { return sequence->rows > 0; };
  if (std::ranges::none_of(running, has_rows) && !running.empty()) return end(*running.back()->request, failed(error));
  for (auto next = running.end(); (next = std::ranges::find_if(running, has_rows)) != running.end();) {
    end(*(*next)->request, failed(error));
  }
}

void StepLoop::fail_step(PlannedStep& step, const std::exception& error) {
  for (const StepPart& part : step.parts) {  // ends are taken out of it
    if (part.sequence != nullptr) end(*part.sequence->request, failed(error));
  }
}

void StepLoop::collect() {
  PlannedStep& step = scheduler_.flying();
  const executor::Result* result = nullptr;
  try {
    result = &runner_.wait(step);
    tiers_.moved(step.moves, runner_.seconds_of_last(), now_);
    rates_.stepped(step.prompt_rows, step.rows, runner_.seconds_of_last());
    scheduler_.computed(runner_.seconds_of_last());
    take_loaded();
    for (Sequence* sequence : scheduler_.running()) {
      starts_.take_pins(*sequence, now_);
      if (!sequence->loads()) requests_.add_progress(*sequence->request, sequence->computed);
    }
  } catch (const std::exception& error) {
    tiers_.not_moved(step.moves);  // if the step was done, there is nothing left of it
    fail_step(step, error);
    if (result != nullptr || !scheduler_.planned().step) return;
    tiers_.not_moved(scheduler_.planned().moves);
    fail_step(scheduler_.planned(), error);  // it was submitted behind one that failed
    return scheduler_.planned().clear();
  }
  read(*result);
}

void StepLoop::read(const executor::Result& result) {
  now_ = config_.now();
  expire();  // a step may take seconds
  std::size_t row = 0, hidden = 0;
  for (const StepPart& part : scheduler_.flying().parts) {
    const auto n_logits = static_cast<std::size_t>(part.n_logits());
    const auto n_hidden = static_cast<std::size_t>(part.n_hidden());
    if (part.sequence != nullptr) {  // else it ended meanwhile, perhaps just now, its time being out
      attempt(*part.sequence->request, [&] {
        const int draw = part.draw();
        const kv::Token token = draw >= 0 ? result.tokens[static_cast<std::size_t>(draw)] : -1;
        reader_.read(part, {result.logits.rows(row, n_logits), result.hidden_states.rows(hidden, n_hidden), token},
                     now_);
      });
    }
    row += n_logits;
    hidden += n_hidden;
  }
}

// Of the planned step, which runs by now. Whose sequence has ended is drawn for nothing.
void StepLoop::tell_samples() {
  const Stopwatch stopwatch(figures_.sampling_seconds);
  specs_.clear();
  for (const StepPart& part : scheduler_.planned().parts) {
    if (part.draw() < 0) continue;
    specs_.push_back({.temperature = 0});
    if (part.sequence == nullptr) continue;
    OpenRequest& open = *part.sequence->request;
    const auto sample = static_cast<std::size_t>(part.sequence->sample);
    attempt(open, [&] { specs_.back() = open.request.samples[sample]->spec(); });
  }
  runner_.sample(scheduler_.planned(), specs_);
}

// The executor is left without a step in hand.
void StepLoop::let_land() {
  PlannedStep& step = scheduler_.flying();
  if (!step.step) return;
  try {
    runner_.wait(step);
    tiers_.moved(step.moves, 0, now_);
  } catch (const std::exception&) {  // nobody waits for it
    tiers_.not_moved(step.moves);
  }
}

}  // namespace coppice::engine
