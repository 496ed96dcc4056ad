#include "server/api/responses/response_store.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace coppice::server {

namespace {

/// Besides its texts: itself, its places in lists and maps, and what allocations cost.
constexpr std::size_t kResponseBytes = sizeof(StoredResponse) + 256;
constexpr std::size_t kItemBytes = sizeof(ConversationItem) + 64;

std::size_t size_of(const std::vector<ConversationItem>& items) {
  std::size_t bytes = 0;
  for (const ConversationItem& item : items) bytes += kItemBytes + item.id.size() + item.json.size();
  return bytes;
}

void trim(std::vector<ConversationItem>& items) {
  items.shrink_to_fit();
  for (ConversationItem& item : items) item.json.shrink_to_fit();
}

}  // namespace

/// By a loop: conversations may have more turns than the stack has room for calls.
StoredResponse::~StoredResponse() {
  std::shared_ptr<const StoredResponse> next = std::move(previous);
  while (next && next.use_count() == 1) {
    auto before = std::move(next->previous);
    next = std::move(before);
  }
  if (tenant_bytes_) *tenant_bytes_ -= bytes_;
}

void StoredResponse::charge(std::size_t bytes) {
  bytes_ += bytes;
  *tenant_bytes_ += bytes;
}

std::vector<const StoredResponse*> conversation(const StoredResponse& last) {
  std::vector<const StoredResponse*> turns;
  for (const StoredResponse* turn = &last; turn != nullptr; turn = turn->previous.get()) turns.push_back(turn);
  std::ranges::reverse(turns);
  return turns;
}

StoredResponse* ResponseStore::lookup(const std::string& id, const ResponseOwner& owner) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() || it->second->owner != owner ? nullptr : it->second;
}

/// See invariant 3.
void ResponseStore::use(const StoredResponse& response) {
  auto& used = tenants_[response.owner.tenant].used;
  for (const StoredResponse* r = &response; r != nullptr; r = r->previous.get())
    if (r->listed_) used.splice(used.begin(), used, r->place_);
}

void ResponseStore::unlist(StoredResponse& response) {
  by_id_.erase(response.id);
  response.listed_ = false;
  tenants_[response.owner.tenant].used.erase(response.place_);  // the last, as it may be its end
}

std::size_t ResponseStore::bytes() const {
  std::size_t sum = 0;
  for (const auto& [name, tenant] : tenants_) sum += *tenant.bytes;
  return sum;
}

bool ResponseStore::make_room() {
  while (bytes() > budget_) {
    Tenant& most = std::ranges::max_element(tenants_, {}, [](const auto& t) { return t.second.bytes->load(); })->second;
    if (most.used.empty()) return false;  // running requests have it all
    unlist(*most.used.back());
    ++evictions_;
  }
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, const ResponseOwner& owner) {
  const check::Lock lock(mutex_);
  const StoredResponse* const found = lookup(id, owner);
  if (found == nullptr) return nullptr;
  use(*found);
  return *found->place_;
}

std::shared_ptr<StoredResponse> ResponseStore::begin(ResponseOwner owner,
                                                     std::shared_ptr<const StoredResponse> previous,
                                                     std::vector<ConversationItem> input) {
  auto response = std::make_shared<StoredResponse>();
  response->owner = std::move(owner);
  if (previous) response->bytes_before_ = previous->bytes_before_ + previous->bytes_;
  response->previous = std::move(previous);
  trim(input);
  response->input = std::move(input);
  const std::size_t bytes = kResponseBytes + response->owner.salt.size() + size_of(response->input);
  if (response->bytes_before_ + bytes > budget_) return nullptr;  // before others go for nothing
  const check::Lock lock(mutex_);
  response->tenant_bytes_ = tenants_[response->owner.tenant].bytes;
  response->charge(bytes);
  return make_room() ? response : nullptr;
}

bool ResponseStore::finish(const std::shared_ptr<StoredResponse>& response, std::string id, std::string body,
                           std::vector<ConversationItem> output) {
  body.shrink_to_fit();
  trim(output);
  const std::size_t bytes = 2 * id.size() + body.size() + size_of(output);
  if (response->bytes_before_ + response->bytes_ + bytes > budget_) return false;
  const check::Lock lock(mutex_);
  if (kept_ && !kept_->contains(response->owner.tenant)) return false;
  response->id = std::move(id);
  response->body = std::move(body);
  response->output = std::move(output);
  response->charge(bytes);
  auto& used = tenants_[response->owner.tenant].used;
  used.push_front(response);
  response->place_ = used.begin();
  response->listed_ = true;
  by_id_.emplace(response->id, response.get());
  use(*response);
  if (!make_room() && response->listed_) unlist(*response);
  return response->listed_;
}

bool ResponseStore::remove(const std::string& id, const ResponseOwner& owner) {
  const check::Lock lock(mutex_);
  StoredResponse* const found = lookup(id, owner);
  if (found != nullptr) unlist(*found);
  return found != nullptr;
}

void ResponseStore::keep_tenants(std::set<std::string> tenants) {
  const check::Lock lock(mutex_);
  kept_ = std::move(tenants);
  for (auto& [name, tenant] : tenants_)
    while (!kept_->contains(name) && !tenant.used.empty()) unlist(*tenant.used.back());
  std::erase_if(tenants_, [](const auto& t) { return t.second.used.empty() && *t.second.bytes == 0; });
}

std::vector<std::shared_ptr<const StoredResponse>> ResponseStore::all() const {
  const check::Lock lock(mutex_);
  std::vector<std::shared_ptr<const StoredResponse>> all;
  for (const auto& [name, tenant] : tenants_) all.insert(all.end(), tenant.used.rbegin(), tenant.used.rend());
  return all;
}

bool ResponseStore::holds(const std::string& id) const {
  const check::Lock lock(mutex_);
  return by_id_.contains(id);
}

ResponseStoreFigures ResponseStore::figures() const {
  const check::Lock lock(mutex_);
  return {.responses = by_id_.size(), .bytes = bytes(), .evictions = evictions_};
}

}  // namespace coppice::server
