#include "server/http/waiting_list.h"

#include "check/assert.h"

namespace coppice::server {

namespace {

/// A host has all addresses of its network's 64 bits.
std::string name_of(const boost::asio::ip::address& address) {
  if (address.is_v4()) {
    const auto bytes = address.to_v4().to_bytes();
    return {bytes.begin(), bytes.end()};
  }
  const auto bytes = address.to_v6().to_bytes();
  if (address.to_v6().is_v4_mapped()) return {bytes.begin() + 12, bytes.end()};
  return {bytes.begin(), bytes.begin() + 8};
}

}  // namespace

WaitingList::Entry::Entry(WaitingList& list, HttpSession& session, const boost::asio::ip::address& address)
    : list_(list), session_(session), address_(name_of(address)) {
  enter(true);
}

void WaitingList::Entry::enter(bool owes_head) {
  leave();
  since_ = Clock::now();
  auto& of_address = list_.by_address_[address_];
  of_address_ = of_address.insert(of_address.end(), this);
  waits_ = true;
  if (!owes_head) return;
  of_heads_ = list_.heads_.insert(list_.heads_.end(), this);
  owes_head_ = true;
}

void WaitingList::Entry::owe_head() {
  if (!owes_head_) enter(true);
}

void WaitingList::Entry::wait() {
  enter(false);
}

void WaitingList::Entry::leave() {
  COPPICE_ASSERT(list_.io_thread_.mine());
  if (owes_head_) list_.heads_.erase(of_heads_);
  if (waits_) {
    const auto of_address = list_.by_address_.find(address_);
    of_address->second.erase(of_address_);
    if (of_address->second.empty()) list_.by_address_.erase(of_address);
  }
  waits_ = owes_head_ = false;
}

HttpSession* WaitingList::longest_owing(Clock::time_point latest) const {
  COPPICE_ASSERT(io_thread_.mine());
  return heads_.empty() || heads_.front()->since_ > latest ? nullptr : &heads_.front()->session_;
}

HttpSession* WaitingList::one_too_many(const Entry& entry, std::size_t most, Clock::time_point latest) const {
  COPPICE_ASSERT(io_thread_.mine());
  const auto found = by_address_.find(entry.address_);
  if (found == by_address_.end() || found->second.size() <= most) return nullptr;
  Entry& first = *found->second.front();
  return first.since_ > latest ? nullptr : &first.session_;
}

}  // namespace coppice::server
