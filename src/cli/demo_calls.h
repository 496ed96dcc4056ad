// What the demos ask a server of. Throw std::runtime_error, or what Boost.JSON does.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <string>

namespace coppice::cli {

/// What it answers.
boost::json::value post_json(std::uint16_t port, const std::string& path, const boost::json::object& body);
/// /v1/cache/stats.
boost::json::value cache_stats(std::uint16_t port);
/// Lets the weights be read and the compute buffers be made. Shares no block with the demos' requests.
void warm_up(std::uint16_t port);

}  // namespace coppice::cli
