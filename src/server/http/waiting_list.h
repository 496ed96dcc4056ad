// WaitingList: the connections that nobody answers just now, by address, and among them those that owe the head of a
// request.
//
// Belongs to the io thread. Outlives its places.
//
// Invariant: a entry that waits is in the list of its address; one that owes a head is also in the list of these. Both
// lists have the longest waiting first.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>

#include "check/thread_role.h"

namespace coppice::server {

class HttpSession;

class WaitingList {
 public:
  using Clock = std::chrono::steady_clock;

  /// A connection's.
  class Entry {
   public:
    /// Waits for the head of the first request.
    Entry(WaitingList& list, HttpSession& session, const boost::asio::ip::address& address);
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry() { leave(); }

    /// From now on. One that owed a head already has done so since then.
    void owe_head();
    /// For the next request's first byte, or for the rest of one whose head was taken.
    void wait();
    /// An answer is under way, or the connection ends.
    void leave();
    /// The connection's: four bytes of IPv4, or eight of the network's.
    const std::string& address() const { return address_; }

   private:
    friend class WaitingList;
    void enter(bool owes_head);

    WaitingList& list_;
    HttpSession& session_;
    std::string address_;
    bool waits_ = false, owes_head_ = false;
    Clock::time_point since_;
    std::list<Entry*>::iterator of_address_, of_heads_;
  };

  /// Who has owed a head for longest, from before `latest`; null: nobody.
  HttpSession* longest_owing(Clock::time_point latest) const;
  /// If over `most` of this one's address wait: who does so for longest, from before `latest`; else null.
  HttpSession* one_too_many(const Entry& entry, std::size_t most, Clock::time_point latest) const;

 private:
  check::ThreadRole io_thread_;
  std::unordered_map<std::string, std::list<Entry*>> by_address_;
  std::list<Entry*> heads_;
};

}  // namespace coppice::server
