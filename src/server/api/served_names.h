// The names a request may call the model by.
#pragma once

#include <string>

namespace coppice::server {

struct ServedNames {
  std::string id;
  std::string alias;  ///< empty: none

  /// Is it the id, the alias, "default", or empty?
  bool known(const std::string& name) const {
    return name.empty() || name == id || name == "default" || (!alias.empty() && name == alias);
  }
  /// What answers say: the name asked for, or the id.
  const std::string& resolve(const std::string& name) const { return !alias.empty() && name == alias ? alias : id; }
};

}  // namespace coppice::server
