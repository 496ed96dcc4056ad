#include <mach/mach.h>
#include <unistd.h>

#include "port/memory.h"

namespace coppice::port {

namespace {

/// Owns a right to ask the kernel about this machine.
class Host {
 public:
  Host() : port_(mach_host_self()) {}
  ~Host() { mach_port_deallocate(mach_task_self(), port_); }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  mach_port_t port() const { return port_; }

 private:
  mach_port_t port_;
};

}  // namespace

/// Pages of files, and those that programs have said they can do without, are dropped when memory is short. There are
/// no control groups.
std::size_t free_memory(const std::filesystem::path&) {
  const Host host;
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t words = HOST_VM_INFO64_COUNT;
  if (host_statistics64(host.port(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &words) != KERN_SUCCESS)
    return 0;
  const std::size_t free = std::size_t{pages.free_count} + pages.external_page_count + pages.purgeable_count;
  return free * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::size_t resident_memory() {
  mach_task_basic_info_data_t found{};
  mach_msg_type_number_t words = MACH_TASK_BASIC_INFO_COUNT;
  if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&found), &words) != KERN_SUCCESS)
    return 0;
  return found.resident_size;
}

void keep_memory_flat() {}

}  // namespace coppice::port
