#include "server/api/base/left_out.h"

#include "server/api/base/ignored_fields.h"

namespace coppice::server {

std::string left_out(const std::string& route, const std::string& type) {
  log_ignored(route, type + " in a tool's result");
  const bool image = type.find("image") != std::string::npos || type.find("screenshot") != std::string::npos;
  return image ? "[An image was here. It is left out: only text can be read.]"
               : "[Something that is no text was here. It is left out.]";
}

}  // namespace coppice::server
