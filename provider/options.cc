// SPDX-License-Identifier: GPL-2.0-or-later
//
// options.cc: socket options and control codes that reach a SAN provider.
#include "provider.h"

namespace sanprov {

namespace {

// Transfers up to this size are cheaper as messages, copied through registered buffers, than as RDMA.
constexpr uint32_t rdma_threshold = 4096;
constexpr int so_max_msg_size = 0x2003; // SO_MAX_MSG_SIZE

uint32_t clamp32(uint64_t n) { return n > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(n); }

struct Extension {
    GUID id;
    void *function;
};
const Extension extensions[] = {
    {WSAID_REGISTERMEMORY, reinterpret_cast<void *>(san_register_memory)},
    {WSAID_DEREGISTERMEMORY, reinterpret_cast<void *>(san_deregister_memory)},
    {WSAID_REGISTERRDMAMEMORY, reinterpret_cast<void *>(san_register_rdma_memory)},
    {WSAID_DEREGISTERRDMAMEMORY, reinterpret_cast<void *>(san_deregister_rdma_memory)},
    {WSAID_RDMAWRITE, reinterpret_cast<void *>(san_rdma_write)},
    {WSAID_RDMAREAD, reinterpret_cast<void *>(san_rdma_read)},
    {WSAID_MEMORYREGISTRATIONCACHECALLBACK, reinterpret_cast<void *>(san_cache_callback)},
};
const GUID rdma_read_id = WSAID_RDMAREAD;

int extension_pointer(LPVOID in, DWORD in_length, LPVOID out, DWORD out_length, LPDWORD returned) {
    if (!in || in_length < sizeof(GUID) || !out || out_length < sizeof(void *)) return WSAEFAULT;
    GUID id;
    memcpy(&id, in, sizeof id);
    if (memcmp(&id, &rdma_read_id, sizeof id) == 0 && !(process->nic.limits().caps & SANPROXY_CAP_RDMA_READ))
        return WSAEOPNOTSUPP;
    for (const Extension &e : extensions) {
        if (memcmp(&id, &e.id, sizeof id) != 0) continue;
        memcpy(out, &e.function, sizeof e.function);
        if (returned) *returned = sizeof e.function;
        return 0;
    }
    return WSAEINVAL;
}

// The list, then the addresses that it points to, all in the caller's buffer.
int address_list(LPVOID out, DWORD out_length, LPDWORD returned) {
    sanproxy_query query = {};
    if (process->nic.query(query) != SANPROXY_OK) return WSAENETDOWN;
    const uint32_t count = query.address_count < SANPROXY_MAX_ADDRESSES ? query.address_count : SANPROXY_MAX_ADDRESSES;
    const size_t head = offsetof(SOCKET_ADDRESS_LIST, Address) + (count ? count : 1) * sizeof(SOCKET_ADDRESS);
    const size_t size = head + count * sizeof(sockaddr_in);
    if (returned) *returned = static_cast<DWORD>(size);
    if (!out || out_length < size) return WSAEFAULT;
    memset(out, 0, size);
    auto *list = static_cast<SOCKET_ADDRESS_LIST *>(out);
    auto *addresses = reinterpret_cast<sockaddr_in *>(static_cast<char *>(out) + head);
    list->iAddressCount = static_cast<INT>(count);
    for (uint32_t i = 0; i < count; ++i) {
        addresses[i].sin_family = AF_INET;
        addresses[i].sin_addr.s_addr = swap32(query.addresses[i].ip);
        list->Address[i].lpSockaddr = reinterpret_cast<sockaddr *>(&addresses[i]);
        list->Address[i].iSockaddrLength = sizeof(sockaddr_in);
    }
    return 0;
}

} // namespace

int WSPAPI san_ioctl(SOCKET handle, DWORD code, LPVOID in, DWORD in_length, LPVOID out, DWORD out_length, LPDWORD returned,
                     LPWSAOVERLAPPED, LPWSAOVERLAPPED_COMPLETION_ROUTINE, LPWSATHREADID, LPINT error) {
    int problem;
    if (code == SIO_GET_EXTENSION_FUNCTION_POINTER) {
        // The switch passes no valid socket here.
        problem = process->starts ? extension_pointer(in, in_length, out, out_length, returned) : WSANOTINITIALISED;
    } else {
        SocketRef s(handle);
        if (!s)
            problem = WSAENOTSOCK;
        else if (code == SIO_ADDRESS_LIST_QUERY)
            problem = address_list(out, out_length, returned);
        else
            problem = WSAENOPROTOOPT; // quality of service and the rest are TCP's
    }
    return problem ? fail(error, problem) : 0;
}

int WSPAPI san_get_sock_opt(SOCKET handle, int level, int name, char *value, LPINT length, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!value || !length) return fail(error, WSAEFAULT);
    uint32_t result;
    if (level != SOL_SOCKET) return fail(error, WSAENOPROTOOPT);
    switch (name) {
    case SO_DEBUG: result = s->debug; break;
    case so_max_msg_size:
    case SO_MAX_RDMA_SIZE: result = clamp32(process->nic.limits().max_message); break;
    case SO_RDMA_THRESHOLD_SIZE: result = rdma_threshold; break;
    default: return fail(error, WSAENOPROTOOPT);
    }
    if (*length < static_cast<int>(sizeof result)) {
        *length = sizeof result;
        return fail(error, WSAEFAULT);
    }
    memcpy(value, &result, sizeof result);
    *length = sizeof result;
    return 0;
}

int WSPAPI san_set_sock_opt(SOCKET handle, int level, int name, const char *value, int length, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!value || length < static_cast<int>(sizeof(BOOL))) return fail(error, WSAEFAULT);
    if (level == SOL_SOCKET && name == SO_DEBUG) {
        memcpy(&s->debug, value, sizeof(BOOL));
        return 0;
    }
    // Messages are never held back to be joined, so this one is true already.
    if (level == IPPROTO_TCP && name == TCP_NODELAY) return 0;
    return fail(error, WSAENOPROTOOPT);
}

BOOL WSPAPI san_get_qos_by_name(SOCKET handle, LPWSABUF, LPQOS, LPINT error) {
    SocketRef s(handle);
    fail(error, s ? WSAEOPNOTSUPP : WSAENOTSOCK);
    return FALSE;
}

} // namespace sanprov
