// kTuple: how our coroutines wait for an operation of Asio: its error comes as a value, not as an exception.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace coppice::server {

inline constexpr auto kTuple = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace coppice::server
