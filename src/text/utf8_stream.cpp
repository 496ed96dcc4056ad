#include "text/utf8_stream.h"

namespace coppice::text {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

/// The decoder's state after a lead byte: how many continuation bytes follow, and which the first may be.
/// Narrower ranges keep out overlong forms (E0, F0), surrogates (ED) and code points above U+10FFFF (F4).
void Utf8Stream::begin(unsigned char lead, std::string& out) {
  low_ = 0x80;
  high_ = 0xBF;
  if (lead < 0x80) {
    out += static_cast<char>(lead);
    return;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    n_needed_ = 1;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    n_needed_ = 2;
    if (lead == 0xE0) low_ = 0xA0;
    if (lead == 0xED) high_ = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    n_needed_ = 3;
    if (lead == 0xF0) low_ = 0x90;
    if (lead == 0xF4) high_ = 0x8F;
  } else {
    out += kReplacement;
    return;
  }
  held_[0] = static_cast<char>(lead);
  n_held_ = 1;
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string out;
  out.reserve(n_held_ + bytes.size());
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (n_held_ == 0) {
      begin(byte, out);
    } else if (byte < low_ || byte > high_) {
      out += flush();  // what is held is a maximal subpart; this byte begins anew
      begin(byte, out);
    } else {
      held_[n_held_++] = c;
      low_ = 0x80;
      high_ = 0xBF;
      if (--n_needed_ == 0) {
        out.append(held_, n_held_);
        n_held_ = 0;
      }
    }
  }
  return out;
}

std::string Utf8Stream::flush() {
  const bool incomplete = n_held_ > 0;
  n_held_ = 0;
  n_needed_ = 0;
  return incomplete ? std::string(kReplacement) : std::string();
}

std::string to_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string text = stream.push(bytes);
  return text += stream.flush();
}

bool is_utf8(std::string_view text) {
  return to_utf8(text) == text;
}

}  // namespace coppice::text
