#include "events/encode.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>

#include "events/msgpack_writer.h"

namespace coppice::events {

namespace {

/// As routers call them; some take others for the pool. That is GPU, wherever it is.
const char* name_of(Medium medium) {
  return medium == Medium::kPool ? "GPU" : medium == Medium::kHost ? "CPU" : "DISK";
}

constexpr const char* kKind = "full_attention";

/// Changes that one event tells.
struct Run {
  std::size_t first = 0, n = 0;
  std::size_t symbols = 0, spans = 0;  ///< where those of the first one begin
};

bool goes_on(const Changes::One& before, const Changes::One& one) {
  return before.medium == one.medium && before.entered == one.entered && before.space == one.space &&
         (!one.entered || (!one.is_first && one.parent == before.digest));
}

class Encoder {
 public:
  Encoder(const Changes& changes, const EncodeOptions& options) : changes_(changes), options_(options) {}

  std::string batch(std::span<const Run> runs, bool anew, double seconds) {
    out_.array(3);
    out_.real(seconds);
    out_.array(runs.size() + (anew ? 1 : 0));
    if (anew) {
      out_.map(1);
      type("AllBlocksCleared");
    }
    for (const Run& run : runs) changes_.list[run.first].entered ? stored(run) : removed(run);
    out_.number(0);  // there is one rank
    return out_.take();
  }

 private:
  std::span<const Changes::One> of(const Run& run) const { return std::span(changes_.list).subspan(run.first, run.n); }
  const kv::Namespace& space(const Changes::One& one) const { return changes_.spaces[one.space]; }
  std::uint64_t name(const kv::Digest& digest, const Changes::One& one) const {
    return options_.names.block(digest, space(one));
  }
  void type(const char* name) {
    out_.text("type");
    out_.text(name);
  }
  void text_or_nil(const std::string& text) {
    if (text.empty()) return out_.nil();
    out_.text(text);
  }

  void hashes(const Run& run) {
    out_.text("block_hashes");
    out_.array(run.n);
    for (const Changes::One& one : of(run)) out_.number(name(one.digest, one));
  }

  void removed(const Run& run) {
    out_.map(4);
    type("BlockRemoved");
    hashes(run);
    out_.text("medium");
    out_.text(name_of(changes_.list[run.first].medium));
    out_.text("group_idx");
    out_.number(0);
  }

  void stored(const Run& run) {
    const Changes::One& first = changes_.list[run.first];
    const bool extra = has_extra(run);
    out_.map(extra ? 11 : 10);
    type("BlockStored");
    hashes(run);
    out_.text("parent_block_hash");
    if (first.is_first) {
      out_.nil();
    } else {
      out_.number(name(first.parent, first));
    }
    out_.text("token_ids");
    const auto n = run.n * static_cast<std::size_t>(options_.block_size);
    out_.array(n);
    for (const std::int32_t symbol : std::span(changes_.symbols).subspan(run.symbols, n))
      out_.number(symbol < 0 ? 0 : static_cast<std::uint64_t>(symbol));
    out_.text("block_size");
    out_.number(static_cast<std::uint64_t>(options_.block_size));
    out_.text("lora_id");
    out_.nil();
    out_.text("medium");
    out_.text(name_of(first.medium));
    out_.text("lora_name");
    text_or_nil(space(first).adapter);
    if (extra) extra_keys(run);
    out_.text("group_idx");
    out_.number(0);
    out_.text("kv_cache_spec_kind");
    out_.text(kKind);
  }

  bool has_extra(const Run& run) const {
    const Changes::One& first = changes_.list[run.first];
    if (!space(first).adapter.empty() || (first.is_first && !space(first).salt.empty())) return true;
    for (const Changes::One& one : of(run))
      if (one.n_spans > 0) return true;
    return false;
  }

  void extra_keys(const Run& run) {
    out_.text("extra_keys");
    out_.array(run.n);
    std::size_t at = run.spans;
    for (const Changes::One& one : of(run)) {
      const kv::Namespace& ns = space(one);
      const std::string salt = one.is_first ? options_.names.salt(ns) : "";
      const std::size_t n = (ns.adapter.empty() ? 0 : 1) + one.n_spans + (salt.empty() ? 0 : 1);
      const auto spans = std::span(changes_.spans).subspan(at, one.n_spans);
      at += one.n_spans;
      if (n == 0) {
        out_.nil();
        continue;
      }
      out_.array(n);
      if (!ns.adapter.empty()) out_.text(ns.adapter);
      for (const kv::MediumSpan& span : spans) medium(span);
      if (!salt.empty()) out_.text(salt);
    }
  }

  void medium(const kv::MediumSpan& span) {
    std::string digest;
    for (const std::uint8_t byte : span.medium.digest) digest += fmt::format("{:02x}", byte);
    out_.array(2);
    out_.text(digest);
    out_.signed_number(span.first - span.index);
  }

  const Changes& changes_;
  const EncodeOptions& options_;
  MsgpackWriter out_;
};

}  // namespace

std::vector<std::string> encode(const Changes& changes, const EncodeOptions& options, double seconds) {
  std::vector<std::string> batches;
  std::vector<Run> runs;
  bool anew = changes.anew;
  const auto finish = [&] {
    if (!runs.empty() || anew) batches.push_back(Encoder(changes, options).batch(runs, anew, seconds));
    runs.clear();
    anew = false;
  };
  std::size_t symbols = 0, spans = 0, blocks = 0;
  for (std::size_t i = 0; i < changes.list.size(); ++i) {
    const Changes::One& one = changes.list[i];
    if (blocks == options.most_blocks) {
      finish();
      blocks = 0;
    }
    if (!runs.empty() && goes_on(changes.list[i - 1], one)) {
      ++runs.back().n;
    } else {
      runs.push_back({i, 1, symbols, spans});
    }
    ++blocks;
    if (one.entered) symbols += static_cast<std::size_t>(options.block_size);
    spans += one.n_spans;
  }
  finish();
  return batches;
}

}  // namespace coppice::events
