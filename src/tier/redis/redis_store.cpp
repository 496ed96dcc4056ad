#include "tier/redis/redis_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "port/process.h"

namespace coppice::tier {

namespace {

constexpr std::size_t kNamesAtOnce = 512, kBytesInFlight = 8 << 20;
constexpr std::chrono::seconds kProbeEvery{1};
constexpr std::string_view kPrefix = "coppice:";

std::string key_of(const Name& name) {
  return std::string(kPrefix) + to_string(name);
}

/// For SCAN's MATCH. Names are hexadecimal: nothing in them is a pattern.
std::string pattern_of(const Which& which) {
  Name name;
  name.model = which.model.value_or(name.model);
  name.space = which.space.value_or(name.space);
  const std::string text = to_string(name);
  return fmt::format("{}{}-{}-*", kPrefix, which.model ? text.substr(0, 32) : "*",
                     which.space ? text.substr(33, 32) : "*");
}

bool matches(const Which& which, const Name& name) {
  return (!which.model || *which.model == name.model) && (!which.space || *which.space == name.space);
}

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

}  // namespace

RedisStore::RedisStore(const RedisOptions& options, std::optional<Seal> seal, Say say)
    : QueuedStore(seal),
      options_(options),
      keep_seconds_(std::to_string(options.keep_for.count())),
      health_(fmt::format("{}:{}", options.address.host, options.address.port), std::move(say)) {
  const auto answers = [this](auto queue, int nicer) {
    threads_.emplace_back([this, queue, nicer] {
      if (nicer > 0) port::make_thread_nicer(nicer);
      again([&] {
        RedisLink link(options_.address, health_);
        work(queue, [&](auto one) { answer(link, std::move(one)); });
      });
    });
  };
  threads_.emplace_back([this] { again([this] { keep(); }); });
  answers(&RedisStore::finds_, 0);
  for (int i = 0; i < options.loaders; ++i) threads_.emplace_back([this] { again([this] { load_pieces(); }); });
  for (int i = 0; i < options.writers; ++i) answers(&RedisStore::writes_, kWritersNicer);
}

RedisStore::~RedisStore() {
  stop(Clock::now());
}

bool RedisStore::is_forgotten(const Name& name) const {
  return std::ranges::any_of(forgotten_, [&](const Which& which) { return !which.unused_for && matches(which, name); });
}

/// To be asked before the server is: what is forgotten may be removed, and be forgotten no more, when the server's
/// answer is read.
std::vector<bool> RedisStore::are_forgotten(const std::vector<Name>& names) {
  const check::Lock lock(mutex_);
  std::vector<bool> forgotten;
  for (const Name& name : names) forgotten.push_back(is_forgotten(name));
  return forgotten;
}

bool RedisStore::offer(const Name& name, Buffer piece) {
  const Name there = outside(name);
  const bool allowed = health_.allows();
  const check::Lock lock(mutex_);
  if (under_way_.contains(there)) return true;
  if (ends_ || !allowed || is_forgotten(there)) {
    ++counters_.dropped;
    return false;
  }
  under_way_.emplace(there, false);
  ++counters_.pending;
  writes_.add({there, std::move(piece)});
  return true;
}

void RedisStore::forget(const Which& which) {
  if (which.kind && !is_at(*which.kind)) return;
  const Which there = outside(which);
  const check::Lock lock(mutex_);
  forgotten_.push_back(there);
  if (!there.unused_for) {
    for (auto& [name, is_forgotten] : under_way_) is_forgotten = is_forgotten || matches(there, name);
  }
  keeper_.notify_one();
}

Counters RedisStore::counters() const {
  const RedisHealth::Report report = health_.report();
  const check::Lock lock(mutex_);
  Counters counters = counters_;
  counters.kind = StoreKind::kRedis;
  counters.on = report.on;
  counters.off_because = report.why;
  counters.io_errors = report.errors;
  counters.switch_offs = report.switch_offs;
  return counters;
}

void RedisStore::answer(RedisLink& link, Find find) {
  std::vector<bool> held(find.names.size());
  std::vector<Name> names;
  for (const Name& name : find.names) names.push_back(outside(name));
  const std::vector<bool> forgotten = are_forgotten(names);
  bool fine = !ends() && link.ensure();
  for (std::size_t begin = 0; fine && begin < names.size(); begin += kNamesAtOnce) {
    const std::size_t end = std::min(names.size(), begin + kNamesAtOnce);
    std::string commands;
    for (std::size_t i = begin; i < end; ++i) add_command(commands, {"EXISTS", key_of(names[i])});
    fine = link.send(commands);
    for (std::size_t i = begin; fine && i < end; ++i) {
      const auto reply = link.next();
      fine = reply.has_value();
      if (fine) held[i] = reply->kind == Reply::Kind::kNumber && reply->number > 0;
    }
  }
  {
    const check::Lock lock(mutex_);
    for (std::size_t i = 0; i < held.size(); ++i) held[i] = held[i] && !ends_ && !forgotten[i];
    counters_.finds += std::ssize(names);
    counters_.found += std::ranges::count(held, true);
  }
  find.done(std::move(held));
}

void RedisStore::load_pieces() {
  RedisLink link(options_.address, health_);
  const auto fit = [](const std::deque<Load>& queue, std::size_t n) {
    return (n + 1) * queue.front().into.memory().size() <= kBytesInFlight;
  };
  for (auto loads = take(&RedisStore::loads_, fit); !loads.empty(); loads = take(&RedisStore::loads_, fit))
    answer(link, std::move(loads));
}

void RedisStore::answer(RedisLink& link, std::vector<Load> loads) {
  const auto begun = Clock::now();
  std::vector<Name> names;
  for (const Load& load : loads) names.push_back(load.name);
  const std::vector<bool> forgotten = are_forgotten(names);
  bool fine = !ends() && link.ensure();
  std::string commands;
  for (const Load& load : loads) add_command(commands, {"GETEX", key_of(load.name), "EX", keep_seconds_});
  fine = fine && link.send(commands);
  for (std::size_t i = 0; i < loads.size(); ++i) {
    Load& load = loads[i];
    fine = fine && read_into(link, load.into);
    bool is_hit = load.into.size() > 0;
    {
      const check::Lock lock(mutex_);
      if (is_hit && forgotten[i]) is_hit = false;
      ++(is_hit ? counters_.loads : counters_.load_misses);
      if (is_hit) counters_.load_bytes += static_cast<std::int64_t>(load.into.size());
    }
    if (!is_hit) load.into.set_size(0);
    const Name name = load.name;
    if (give(std::move(load))) continue;
    const check::Lock lock(mutex_);
    ++counters_.damaged;
    if (!ends_) writes_.add({name, Buffer()});
  }
  const check::Lock lock(mutex_);
  counters_.load_seconds += seconds_since(begun);
}

/// The next reply. False: the connection is gone.
bool RedisStore::read_into(RedisLink& link, Buffer& into) {
  const auto reply = link.next();
  if (!reply) return false;
  if (reply->kind != Reply::Kind::kValue) return true;
  const auto bytes = static_cast<std::size_t>(reply->number);
  if (bytes > into.memory().size()) return link.skip_value(reply->number);
  if (!link.value(into.memory().first(bytes))) return false;
  into.set_size(bytes);
  return true;
}

void RedisStore::answer(RedisLink& link, Write next) {
  const bool is_removal = !next.piece;
  bool wanted = !is_late();
  if (!is_removal) {
    const check::Lock lock(mutex_);
    wanted = wanted && !under_way_.at(next.name);
  }
  const auto begun = Clock::now();
  const auto bytes = static_cast<std::int64_t>(next.piece.size());
  const bool written = wanted && link.ensure() && write(link, next);
  next.piece = Buffer();
  if (is_removal) return;
  bool is_forgotten = false;
  {
    const check::Lock lock(mutex_);
    const auto entry = under_way_.find(next.name);
    is_forgotten = entry->second;
    under_way_.erase(entry);
    --counters_.pending;
    counters_.write_seconds += seconds_since(begun);
    ++(written ? counters_.writes : counters_.dropped);
    if (written) counters_.write_bytes += bytes;
  }
  if (written && is_forgotten) write(link, next);  // without a piece: removes it
}

/// True: it is there; or it is removed, if there is no piece. False: there is no room, or the connection is gone.
bool RedisStore::write(RedisLink& link, Write& write) {
  std::string command;
  if (!write.piece) {
    add_command(command, {"UNLINK", key_of(write.name)});
    return link.send(command) && link.next().has_value();
  }
  if (!close(write)) return false;
  add_command(command, {"EXPIRE", key_of(write.name), keep_seconds_});
  if (!link.send(command)) return false;
  const auto there = link.next();
  if (!there) return false;
  if (there->kind == Reply::Kind::kNumber && there->number > 0) return true;
  command.clear();
  add_set_head(command, key_of(write.name), keep_seconds_, write.piece.size());
  if (!link.send(command) || !link.send(write.piece.bytes()) || !link.send("\r\n")) return false;
  const auto kept = link.next();
  return kept && !kept->is_error();
}

/// Looks after the connection while nobody asks, and removes what is forgotten.
void RedisStore::keep() {
  port::make_thread_nicer(kWritersNicer);
  RedisLink link(options_.address, health_);
  for (;;) {
    const bool is_there = link.ensure();
    std::optional<Which> which;
    check::Lock lock(mutex_);
    if (!forgotten_.empty() && is_there) which = forgotten_.front();
    if (which) {
      lock.unlock();
      const bool removed = remove_all(link, *which);
      lock.lock();
      if (removed) forgotten_.pop_front();
      if (removed) continue;
    }
    const auto until = Clock::now() + kProbeEvery;
    while (!ends_ && (forgotten_.empty() || !is_there) && keeper_.wait_until(lock, until)) {
    }
    if (ends_ && (forgotten_.empty() || !is_there || Clock::now() >= *ends_)) return;
  }
}

bool RedisStore::remove_all(RedisLink& link, const Which& which) {
  const std::string pattern = pattern_of(which);
  std::string cursor = "0";
  do {
    std::string command;
    add_command(command, {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
    if (!link.send(command)) return false;
    const auto list = link.next();
    const auto at = list ? link.next() : std::nullopt;
    const auto next = at ? link.short_value(*at) : std::nullopt;
    const auto found = next ? link.next() : std::nullopt;
    if (!found || found->kind != Reply::Kind::kList) return false;
    cursor = *next;
    std::vector<std::string> keys;
    for (std::int64_t i = 0; i < found->number; ++i) {
      const auto head = link.next();
      const auto key = head ? link.short_value(*head) : std::nullopt;
      if (!key) return false;
      keys.push_back(*key);
    }
    if (!remove(link, keys, which)) return false;
  } while (cursor != "0");
  return true;
}

bool RedisStore::remove(RedisLink& link, const std::vector<std::string>& keys, const Which& which) {
  std::vector<bool> goes(keys.size(), true);
  std::string commands;
  if (which.unused_for) {
    for (const std::string& key : keys) add_command(commands, {"OBJECT", "IDLETIME", key});
    if (!commands.empty() && !link.send(commands)) return false;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto idle = link.next();
      if (!idle) return false;
      goes[i] = idle->kind == Reply::Kind::kNumber && idle->number >= which.unused_for->count();
    }
  }
  commands.clear();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (goes[i]) add_command(commands, {"UNLINK", keys[i]});
  }
  if (!commands.empty() && !link.send(commands)) return false;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (goes[i] && !link.next()) return false;
  }
  return true;
}

}  // namespace coppice::tier
