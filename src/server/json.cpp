#include "server/json.h"

#include <boost/json/serialize.hpp>

#include "text/utf8_stream.h"

namespace coppice::server {

std::string dump(const Json& json) {
  std::string text = boost::json::serialize(json);
  return text::is_utf8(text) ? text : text::to_utf8(text);
}

}  // namespace coppice::server
