// SPDX-License-Identifier: GPL-2.0-or-later
//
// loader.cc: the switch's half of the contract: start-up, up-calls, extension pointers and the news of memory that is going
// away.
#include "switch.h"

namespace sanswitch {

namespace {

using SecureCallback = BOOLEAN(NTAPI *)(PVOID, SIZE_T);

HMODULE library;
WSPPROC_TABLE proc_table;
Extensions extension_table;
UpcallCounters upcall_counters;
WSPUPCALLTABLEEX upcall_table;

// Switch handles: numbers that are not reused for a long time, so that a late up-call is noticed.
constexpr uint32_t handle_slots = 65536;
constexpr SOCKET handle_base = 0x40000;
DWORD_PTR handle_context[handle_slots];
unsigned char handle_open[handle_slots];
volatile LONG next_handle;

bool known(SOCKET s) {
    return s >= handle_base && s < handle_base + 4 * handle_slots && handle_open[(s - handle_base) / 4];
}

int bad_handle(LPINT error) {
    InterlockedIncrement(&upcall_counters.bad_handles);
    *error = WSAENOTSOCK;
    return SOCKET_ERROR;
}

SOCKET WSPAPI create_socket_handle(DWORD, DWORD_PTR context, LPINT error) {
    for (uint32_t i = 0; i < handle_slots; ++i) {
        const uint32_t n = static_cast<uint32_t>(InterlockedIncrement(&next_handle)) % handle_slots;
        if (handle_open[n]) continue;
        handle_context[n] = context;
        handle_open[n] = 1;
        InterlockedIncrement(&upcall_counters.handles_created);
        return handle_base + 4 * n;
    }
    *error = WSAENOBUFS;
    return INVALID_SOCKET;
}

int WSPAPI close_socket_handle(SOCKET s, LPINT error) {
    if (!known(s)) return bad_handle(error);
    handle_open[(s - handle_base) / 4] = 0;
    InterlockedIncrement(&upcall_counters.handles_closed);
    return 0;
}

int WSPAPI query_socket_handle_context(SOCKET s, PDWORD_PTR context, LPINT error) {
    if (!known(s)) return bad_handle(error);
    *context = handle_context[(s - handle_base) / 4];
    return 0;
}

// Length first, then the end of "in progress"; then whoever waits is told.
int WSPAPI complete_overlapped_request(SOCKET s, LPWSAOVERLAPPED overlapped, DWORD error_code, DWORD bytes, LPINT error) {
    if (!known(s)) {
        bad_handle(error);
        *error = WSAEINVAL;
        return SOCKET_ERROR;
    }
    auto *op = CONTAINING_RECORD(overlapped, Operation, overlapped);
    InterlockedIncrement(&upcall_counters.completions);
    InterlockedIncrement(&op->notifications);
    op->error = error_code;
    op->bytes = bytes;
    op->high_when_notified = static_cast<DWORD>(overlapped->InternalHigh);
    HANDLE event = op->event; // once it has ended, the operation is its owner's again
    void (*callback)(Operation *) = op->callback;
    overlapped->InternalHigh = bytes;
    __atomic_store_n(&overlapped->Internal, static_cast<ULONG_PTR>(0), __ATOMIC_RELEASE);
    if (event) SetEvent(event);
    if (callback) callback(op);
    return 0;
}

BOOLEAN NTAPI memory_going(PVOID address, SIZE_T size) {
    InterlockedIncrement(&upcall_counters.cache_callbacks);
    int error = 0;
    if (!extension_table.cache_callback || extension_table.cache_callback(address, size, &error) != 0) return FALSE;
    InterlockedIncrement(&upcall_counters.cache_hits);
    return TRUE;
}

template <typename Function> bool lookup(Function &out, const char *module, const char *name) {
    HMODULE m = GetModuleHandleA(module);
    out = m ? reinterpret_cast<Function>(reinterpret_cast<void *>(GetProcAddress(m, name))) : nullptr;
    return out != nullptr;
}

bool watch_memory() {
    BOOL(WINAPI * add)(SecureCallback);
    if (lookup(add, "kernel32.dll", "AddSecureMemoryCacheCallback")) return add(memory_going);
    LONG(NTAPI * rtl_add)(SecureCallback);
    return lookup(rtl_add, "ntdll.dll", "RtlRegisterSecureMemoryCacheCallback") && rtl_add(memory_going) >= 0;
}

void unwatch_memory() {
    BOOL(WINAPI * remove)(SecureCallback);
    LONG(NTAPI * rtl_remove)(SecureCallback);
    if (lookup(remove, "kernel32.dll", "RemoveSecureMemoryCacheCallback"))
        remove(memory_going);
    else if (lookup(rtl_remove, "ntdll.dll", "RtlDeregisterSecureMemoryCacheCallback"))
        rtl_remove(memory_going);
}

template <typename Function> int extension(const GUID &id, Function &out) {
    int error = 0;
    DWORD returned = 0;
    void *pointer = nullptr;
    GUID in = id;
    // The switch passes no valid socket here.
    if (proc_table.lpWSPIoctl(INVALID_SOCKET, SIO_GET_EXTENSION_FUNCTION_POINTER, &in, sizeof in, &pointer, sizeof pointer,
                              &returned, nullptr, nullptr, nullptr, &error) != 0)
        return error;
    out = reinterpret_cast<Function>(pointer);
    return 0;
}

int fetch_extensions() {
    Extensions &e = extension_table;
    int error = extension(GUID WSAID_REGISTERMEMORY, e.register_memory);
    if (!error) error = extension(GUID WSAID_DEREGISTERMEMORY, e.deregister_memory);
    if (!error) error = extension(GUID WSAID_REGISTERRDMAMEMORY, e.register_rdma_memory);
    if (!error) error = extension(GUID WSAID_DEREGISTERRDMAMEMORY, e.deregister_rdma_memory);
    if (!error) error = extension(GUID WSAID_RDMAWRITE, e.rdma_write);
    if (error) return error;
    // The two that a provider may lack.
    if (extension(GUID WSAID_RDMAREAD, e.rdma_read)) e.rdma_read = nullptr;
    if (extension(GUID WSAID_MEMORYREGISTRATIONCACHECALLBACK, e.cache_callback)) e.cache_callback = nullptr;
    return 0;
}

} // namespace

// The entry of the TCP/IP provider, by which a SAN provider knows that the switch is calling.
WSAPROTOCOL_INFOW tcp_entry() {
    WSAPROTOCOL_INFOW info = {};
    info.dwServiceFlags1 = XP1_GUARANTEED_DELIVERY | XP1_GUARANTEED_ORDER | XP1_GRACEFUL_CLOSE | XP1_IFS_HANDLES;
    info.ProtocolChain.ChainLen = BASE_PROTOCOL;
    info.iVersion = 2;
    info.iAddressFamily = AF_INET;
    info.iMaxSockAddr = info.iMinSockAddr = sizeof(sockaddr_in);
    info.iSocketType = SOCK_STREAM;
    info.iProtocol = IPPROTO_TCP;
    return info;
}

int startup(const char *name, const char **what) {
    *what = "loading the provider";
    library = LoadLibraryA(name ? name : "sanprov.dll");
    if (!library) return static_cast<int>(GetLastError());
    *what = "finding WSPStartupEx";
    auto start = reinterpret_cast<LPWSPSTARTUPEX>(reinterpret_cast<void *>(GetProcAddress(library, "WSPStartupEx")));
    int error = start ? 0 : WSAEPROVIDERFAILEDINIT;
    if (!error) {
        *what = "WSPStartupEx";
        upcall_table = {};
        upcall_table.lpWPUCreateSocketHandle = create_socket_handle;
        upcall_table.lpWPUCloseSocketHandle = close_socket_handle;
        upcall_table.lpWPUQuerySocketHandleContext = query_socket_handle_context;
        upcall_table.lpWPUCompleteOverlappedRequest = complete_overlapped_request;
        WSPDATA data = {};
        WSAPROTOCOL_INFOW info = tcp_entry();
        error = start(MAKEWORD(2, 2), &data, &info, &upcall_table, &proc_table);
    }
    if (!error) {
        *what = "the extension functions";
        error = fetch_extensions();
        if (error) {
            int ignored;
            proc_table.lpWSPCleanup(&ignored);
        }
    }
    if (error) {
        FreeLibrary(library);
        library = nullptr;
        return error;
    }
    if (extension_table.cache_callback) watch_memory();
    *what = "";
    return 0;
}

HMODULE provider() { return library; }

void shutdown() {
    if (!library) return;
    int ignored;
    proc_table.lpWSPCleanup(&ignored);
    unwatch_memory();
    FreeLibrary(library);
    library = nullptr;
}

const WSPPROC_TABLE &procs() { return proc_table; }
const Extensions &extensions() { return extension_table; }
UpcallCounters &counters() { return upcall_counters; }
const WSPUPCALLTABLEEX &upcalls() { return upcall_table; }

size_t addresses(uint32_t *out, size_t max) {
    int error = 0;
    SOCKET s = proc_table.lpWSPSocket(AF_INET, SOCK_STREAM, IPPROTO_TCP, nullptr, 0, WSA_FLAG_OVERLAPPED, &error);
    if (s == INVALID_SOCKET) return 0;
    // Probed with nothing first, as the switch does.
    DWORD size = 0;
    size_t count = 0;
    alignas(SOCKET_ADDRESS_LIST) unsigned char buffer[1024];
    proc_table.lpWSPIoctl(s, SIO_ADDRESS_LIST_QUERY, nullptr, 0, nullptr, 0, &size, nullptr, nullptr, nullptr, &error);
    if (size <= sizeof buffer && proc_table.lpWSPIoctl(s, SIO_ADDRESS_LIST_QUERY, nullptr, 0, buffer, sizeof buffer, &size,
                                                       nullptr, nullptr, nullptr, &error) == 0) {
        const auto *list = reinterpret_cast<const SOCKET_ADDRESS_LIST *>(buffer);
        for (INT i = 0; i < list->iAddressCount; ++i, ++count)
            if (count < max)
                out[count] = __builtin_bswap32(
                    reinterpret_cast<const sockaddr_in *>(list->Address[i].lpSockaddr)->sin_addr.s_addr);
    }
    proc_table.lpWSPCloseSocket(s, &error);
    return count;
}

} // namespace sanswitch
