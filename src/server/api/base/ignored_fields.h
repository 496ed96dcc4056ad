// Says in the log what a request asks for and does not get, where the answer stays the same without it.
//
// Any thread may call these.
#pragma once

#include <initializer_list>
#include <string>

#include "server/api/base/json_fields.h"

namespace coppice::server {

/// One line, once for each `what` of a path while the process lives. Clients name some of it (kinds of tools): only the
/// first 64 different ones are said, each cut to its first 80 bytes, in quotes.
void log_ignored(const std::string& path, std::string what);

/// Likewise of what is taken and no grammar holds: a schema's keyword, or all of it. `where`: whose it is.
void log_not_held(const std::string& where, std::string what);

/// As log_ignored() for those fields that the request has; "a.b": field b of the object a.
void log_ignored_fields(const std::string& path, const JsonFields& request, std::initializer_list<const char*> names);

}  // namespace coppice::server
