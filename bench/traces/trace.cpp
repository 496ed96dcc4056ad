#include "trace.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace coppice::bench {

Trace read_trace(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(fmt::format("{} can't be read", file.string()));
  Trace trace;
  std::unordered_map<std::int64_t, std::int32_t> numbers;
  std::vector<std::int32_t> parents;  // by id; -1: a first block
  std::int64_t now = 0;
  std::string line;
  for (int n = 1; std::getline(in, line); ++n) {
    const auto fail = [&](const std::string& why) {
      throw std::runtime_error(fmt::format("{}, line {}: {}", file.string(), n, why));
    };
    TraceRequest request;
    try {
      const auto object = nlohmann::json::parse(line);
      const std::int64_t timestamp = object.at("timestamp").get<std::int64_t>();
      if (timestamp < now) fail("requests are not in order of arrival");
      now = timestamp;
      for (const auto& id : object.at("hash_ids")) {
        const auto [it, fresh] = numbers.try_emplace(id.get<std::int64_t>(), trace.distinct);
        const std::int32_t parent = request.ids.empty() ? -1 : request.ids.back();
        if (fresh) {
          parents.push_back(parent);
          ++trace.distinct;
        } else if (parents[static_cast<std::size_t>(it->second)] != parent) {
          fail("an id stands for two different prompts");
        }
        request.ids.push_back(it->second);
      }
    } catch (const nlohmann::json::exception& e) {
      fail(e.what());
    }
    trace.blocks += static_cast<std::int64_t>(request.ids.size());
    if (!request.ids.empty()) trace.requests.push_back(std::move(request));
  }
  return trace;
}

}  // namespace coppice::bench
