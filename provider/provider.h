// SPDX-License-Identifier: GPL-2.0-or-later
//
// provider.h: what the process has once: the start count, the switch's up-calls, the NIC, the registration cache; and the
// declarations of all service provider functions.
#pragma once

#include "socket.h"

namespace sanprov {

// The cache's way to the driver.
class CacheBackend : public regcache::Backend {
  public:
    explicit CacheBackend(Nic &nic) : nic_(nic) {}
    void lock() override { lock_.lock(); }
    void unlock() override { lock_.unlock(); }
    void *allocate(size_t bytes) override { return heap_alloc(bytes); }
    void free(void *memory) override { heap_free(memory); }
    void pause() override { Sleep(0); }
    uint32_t thread_number() override { return GetCurrentThreadId() / 4; } // ids are multiples of four
    regcache::Status pin(uint64_t start, uint64_t length, uint32_t rights, regcache::Owner *owner,
                         regcache::Region &region) override;
    regcache::Status expose(regcache::Region &region, uint32_t rights, regcache::Owner *owner) override;
    regcache::Status revoke(regcache::Region &region) override;
    void unpin(regcache::Region &region) override;

  private:
    Nic &nic_;
    CriticalSection lock_;
};

struct Process {
    CriticalSection start_lock; // start and stop
    LONG starts = 0;
    WSPUPCALLTABLEEX upcalls = {};
    Nic nic;
    CacheBackend backend{nic};
    regcache::Cache *cache = nullptr;
};

// Constructed by DllMain, alive until the DLL goes.
extern Process *process;

// Every operation's way out.
inline int fail(LPINT error_out, int error) {
    if (error_out) *error_out = error;
    return SOCKET_ERROR;
}

// The service provider functions, by file.
// sockets.cc
SOCKET WSPAPI san_socket(int af, int type, int protocol, LPWSAPROTOCOL_INFOW info, GROUP group, DWORD flags, LPINT error);
int WSPAPI san_bind(SOCKET handle, const sockaddr *name, int length, LPINT error);
int WSPAPI san_close_socket(SOCKET handle, LPINT error);
// handover.cc
SOCKET take_over(uint32_t token, int *error); // WSPSocket with dwProviderReserved
int WSPAPI san_duplicate_socket(SOCKET handle, DWORD process_id, LPWSAPROTOCOL_INFOW info, LPINT error);
// connect.cc
int WSPAPI san_connect(SOCKET handle, const sockaddr *name, int length, LPWSABUF caller_data, LPWSABUF callee_data,
                       LPQOS sqos, LPQOS gqos, LPINT error);
// listen.cc
int WSPAPI san_listen(SOCKET handle, int backlog, LPINT error);
SOCKET WSPAPI san_accept(SOCKET handle, sockaddr *address, LPINT address_length, LPCONDITIONPROC condition,
                         DWORD_PTR callback_data, LPINT error);
// events.cc
int WSPAPI san_event_select(SOCKET handle, WSAEVENT event, long events, LPINT error);
int WSPAPI san_enum_network_events(SOCKET handle, WSAEVENT event, LPWSANETWORKEVENTS out, LPINT error);
// data.cc
int WSPAPI san_send(SOCKET handle, LPWSABUF buffers, DWORD count, LPDWORD sent, DWORD flags, LPWSAOVERLAPPED overlapped,
                    LPWSAOVERLAPPED_COMPLETION_ROUTINE routine, LPWSATHREADID thread, LPINT error);
int WSPAPI san_recv(SOCKET handle, LPWSABUF buffers, DWORD count, LPDWORD received, LPDWORD flags,
                    LPWSAOVERLAPPED overlapped, LPWSAOVERLAPPED_COMPLETION_ROUTINE routine, LPWSATHREADID thread,
                    LPINT error);
int WSPAPI san_rdma_write(SOCKET handle, LPWSABUFEX buffers, DWORD count, LPVOID descriptor, DWORD descriptor_length,
                          DWORD offset, LPDWORD written, DWORD flags, LPWSAOVERLAPPED overlapped,
                          LPWSAOVERLAPPED_COMPLETION_ROUTINE routine, LPWSATHREADID thread, LPINT error);
int WSPAPI san_rdma_read(SOCKET handle, LPWSABUFEX buffers, DWORD count, LPVOID descriptor, DWORD descriptor_length,
                         DWORD offset, LPDWORD read, DWORD flags, LPWSAOVERLAPPED overlapped,
                         LPWSAOVERLAPPED_COMPLETION_ROUTINE routine, LPWSATHREADID thread, LPINT error);
// completion.cc
BOOL WSPAPI san_get_overlapped_result(SOCKET handle, LPWSAOVERLAPPED overlapped, LPDWORD bytes, BOOL wait, LPDWORD flags,
                                      LPINT error);
// memory.cc
HANDLE WSPAPI san_register_memory(SOCKET handle, PVOID buffer, DWORD length, DWORD flags, LPINT error);
int WSPAPI san_deregister_memory(SOCKET handle, HANDLE registration, LPINT error);
int WSPAPI san_register_rdma_memory(SOCKET handle, PVOID buffer, DWORD length, DWORD flags, LPVOID descriptor,
                                    LPDWORD descriptor_length, LPINT error);
int WSPAPI san_deregister_rdma_memory(SOCKET handle, LPVOID descriptor, DWORD descriptor_length, LPINT error);
int WSPAPI san_cache_callback(PVOID address, SIZE_T size, LPINT error);
// options.cc
int WSPAPI san_get_sock_opt(SOCKET handle, int level, int name, char *value, LPINT length, LPINT error);
int WSPAPI san_set_sock_opt(SOCKET handle, int level, int name, const char *value, int length, LPINT error);
int WSPAPI san_ioctl(SOCKET handle, DWORD code, LPVOID in, DWORD in_length, LPVOID out, DWORD out_length,
                     LPDWORD returned, LPWSAOVERLAPPED overlapped, LPWSAOVERLAPPED_COMPLETION_ROUTINE routine,
                     LPWSATHREADID thread, LPINT error);
BOOL WSPAPI san_get_qos_by_name(SOCKET handle, LPWSABUF name, LPQOS qos, LPINT error);
// unsupported.cc: the thirteen that the switch never calls
void fill_unsupported(WSPPROC_TABLE &table);
// startup.cc
int WSPAPI san_cleanup(LPINT error);

} // namespace sanprov
