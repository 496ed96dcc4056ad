// Refusals: how requests end that can't be let in, can't go on, or ran out of time, in words for their clients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/config.h"
#include "engine/request_table.h"
#include "engine/sequence.h"
#include "executor/executor.h"

namespace coppice::engine {

/// Of a prompt that this executor can't compute: in a step it would take all others along. None: it can.
std::optional<Outcome> no_media(const Request& request, const executor::ExecutorInfo& info);
/// It weighs more than all requests together may.
Outcome too_heavy(const OpenRequest& open, std::size_t max_weight);
/// With the others it weighs more than that.
Outcome no_weight_left(std::size_t max_weight);
Outcome queue_full(std::size_t max_waiting);
Outcome out_of_time(const OpenRequest& open, Clock::time_point now);
/// `needed` blocks, of which at most `available` can be had.
Outcome no_blocks(std::int64_t needed, std::int64_t available);

}  // namespace coppice::engine
