// The files of the page at "/" (web/ and the libraries that CMake puts beside them), as they are in the binary.
#pragma once

#include <span>
#include <string_view>

namespace coppice::server {

struct PageFile {
  std::string_view path;  ///< of its URL
  std::string_view type;  ///< its Content-Type
  std::string_view bytes;
};

std::span<const PageFile> page_files();
/// Null: none.
const PageFile* find_page_file(std::string_view path);

/// No script, style or image but the page's own, whatever a model's answer holds; nothing is asked for elsewhere
/// (docs/decisions.md, "The page").
inline constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

}  // namespace coppice::server
