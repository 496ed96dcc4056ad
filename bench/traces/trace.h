// A trace of requests: which blocks of 512 tokens each prompt is made of, in order of arrival.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace coppice::bench {

inline constexpr int kTraceBlock = 512;  ///< tokens that one id stands for

struct TraceRequest {
  std::vector<std::int32_t> ids;  ///< equal ids stand for equal prompts up to and with this block
};

struct Trace {
  std::vector<TraceRequest> requests;
  std::int32_t distinct = 0;  ///< ids are 0 .. distinct - 1, numbered by their first use
  std::int64_t blocks = 0;    ///< ids in all requests
};

/// Reads one JSON object a line: `timestamp` (never falls), `hash_ids`; other members are ignored. Throws
/// std::runtime_error when the file is not such a trace, or when one id follows two different ones.
Trace read_trace(const std::filesystem::path& file);

}  // namespace coppice::bench
