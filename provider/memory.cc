// SPDX-License-Identifier: GPL-2.0-or-later
//
// memory.cc: the four registration functions and the cache callback. A registration is this socket's hold on an entry of the
// process's cache; the cache keeps what is expensive, the socket keeps what the contract wants to be its own.
#include "provider.h"

namespace sanprov {

using regcache::Status;

// The rights of the SPI, the cache and the NIC must be the same bits: they are passed through.
static_assert(MEM_READ == regcache::local_read && MEM_WRITE == regcache::local_write);
static_assert(uint32_t{regcache::local_read} == SNIC_ACCESS_LOCAL_READ && uint32_t{regcache::local_write} == SNIC_ACCESS_LOCAL_WRITE &&
              uint32_t{regcache::remote_read} == SNIC_ACCESS_REMOTE_READ &&
              uint32_t{regcache::remote_write} == SNIC_ACCESS_REMOTE_WRITE);

// --- the cache's backend ---------------------------------------------------------------------------------------------

namespace {
Status cache_status(uint32_t result) {
    switch (result) {
    case SANPROXY_OK: return Status::ok;
    case SANPROXY_BAD_ADDRESS:
    case SANPROXY_BAD_PARAMETER: return Status::bad_address;
    case SANPROXY_NO_RESOURCES: return Status::no_resources;
    default: return Status::failed;
    }
}
} // namespace

Status CacheBackend::pin(uint64_t start, uint64_t length, uint32_t rights, regcache::Owner *owner,
                         regcache::Region &region) {
    sanproxy_register r = {};
    r.va = start;
    r.length = length;
    r.access = rights;
    if (rights & regcache::remote_any) r.qp = static_cast<uint32_t>(owner->tag);
    const uint32_t result = nic_.request(SANPROXY_IOCTL_REGISTER, r);
    region = {r.id, r.key};
    return cache_status(result);
}

Status CacheBackend::expose(regcache::Region &region, uint32_t rights, regcache::Owner *owner) {
    sanproxy_expose r = {};
    r.id = static_cast<uint32_t>(region.id);
    r.qp = static_cast<uint32_t>(owner->tag);
    r.access = rights;
    const uint32_t result = nic_.request(SANPROXY_IOCTL_EXPOSE, r);
    if (result == SANPROXY_OK) region.key = r.key;
    return cache_status(result);
}

Status CacheBackend::revoke(regcache::Region &region) {
    sanproxy_object r = {};
    r.id = static_cast<uint32_t>(region.id);
    return cache_status(nic_.request(SANPROXY_IOCTL_REVOKE, r));
}

void CacheBackend::unpin(regcache::Region &region) { nic_.close_object(static_cast<uint32_t>(region.id)); }

// --- a socket's registrations ------------------------------------------------------------------------------------------

namespace {

constexpr unsigned search_everything = ~0u;

Registration *registration_of(regcache::Interval *node) { return static_cast<Registration *>(node); }

// A registration handle: generation, index + 1, two zero bits. A 32-bit process has room for less of each.
constexpr unsigned generation_shift = sizeof(void *) == 8 ? 32 : 18;
constexpr uint32_t generation_mask = sizeof(void *) == 8 ? 0xffff : 0x3fff;
constexpr uint32_t max_slots = sizeof(void *) == 8 ? 1u << 29 : 1u << 15;

HANDLE make_handle(uint32_t index, uint32_t generation) {
    return reinterpret_cast<HANDLE>((static_cast<uintptr_t>(generation) << generation_shift) | (index + 1) << 2);
}

// Under s.lock.
bool grow_slots(Socket &s) {
    const uint32_t count = s.handle_count ? 2 * s.handle_count : 16;
    if (count > max_slots) return false;
    auto *larger = static_cast<Socket::Slot *>(heap_alloc(count * sizeof(Socket::Slot)));
    if (!larger) return false;
    if (s.handles) memcpy(larger, s.handles, s.handle_count * sizeof(Socket::Slot));
    heap_free(s.handles);
    for (uint32_t i = s.handle_count; i < count; ++i) larger[i].next_free = i + 1 < count ? i + 2 : 0;
    s.free_handle = s.handle_count + 1;
    s.handles = larger;
    s.handle_count = count;
    return true;
}

// Under s.lock.
bool take_slot(Socket &s, Registration *r) {
    if (s.free_handle == 0 && !grow_slots(s)) return false;
    r->index = s.free_handle - 1;
    Socket::Slot &slot = s.handles[r->index];
    s.free_handle = slot.next_free;
    slot.registration = r;
    slot.generation = (slot.generation + 1) & generation_mask;
    return true;
}

// Under s.lock. nullptr: none is spare.
Registration *spare(Socket &s) {
    Registration *r = s.free_registrations;
    if (r) s.free_registrations = r->next;
    return r;
}

// Under s.lock.
void give_back(Socket &s, Registration *r) {
    r->next = s.free_registrations;
    s.free_registrations = r;
}

// Under s.lock. Takes it out of all look-ups, and gives it back. The cache's entry, which the caller releases without the lock.
regcache::Entry *forget(Socket &s, Registration *r) {
    if (r->remote) {
        s.remote_registrations.remove(r);
    } else {
        s.local_registrations.remove(r);
        s.handles[r->index].registration = nullptr;
        s.handles[r->index].next_free = s.free_handle;
        s.free_handle = r->index + 1;
    }
    give_back(s, r);
    return r->entry;
}

int winsock_error(Status status) {
    switch (status) {
    case Status::ok: return 0;
    case Status::bad_address: return WSAEFAULT;
    case Status::no_resources: return WSAENOBUFS;
    default: return WSAENETDOWN;
    }
}

// Under s.lock.
int check_registrable(const Socket &s) {
    if (s.state == State::closed) return WSAENOTSOCK;
    if (s.state == State::connected || (s.state == State::connecting && s.qp_id)) return 0;
    return s.state == State::disconnected && s.error ? s.error : WSAENOTCONN;
}

// What register_range() leaves: a copy, since another thread may deregister at once.
struct Registered {
    HANDLE handle; // local
    uint64_t key;  // remote
};

// A registration in the socket's look-ups. 0 or a Winsock error.
int register_range(Socket &s, PVOID buffer, DWORD length, uint32_t rights, Registered &out) {
    Registration *r;
    {
        Guard guard(s.lock);
        const int problem = check_registrable(s);
        if (problem) return problem;
        r = spare(s);
    }
    if (!r) r = heap_new<Registration>();
    if (!r) return WSAENOBUFS;
    const uint64_t start = address_of(buffer);
    regcache::Entry *entry;
    const Status status = process->cache->acquire(start, length, rights, &s.owner, entry);
    int problem = winsock_error(status);
    {
        Guard guard(s.lock);
        if (!problem) problem = check_registrable(s); // it may have been closed meanwhile
        const bool remote = rights & regcache::remote_any;
        if (!problem && !remote && !take_slot(s, r)) problem = WSAENOBUFS;
        if (problem) {
            give_back(s, r);
        } else {
            r->first = start;
            r->last = start + (length - 1);
            r->entry = entry;
            r->remote = remote;
            r->in_use = 0;
            (remote ? s.remote_registrations : s.local_registrations).insert(r);
            if (remote) out.key = entry->key();
            else out.handle = make_handle(r->index, s.handles[r->index].generation);
        }
    }
    if (problem && entry) process->cache->release(entry);
    return problem;
}

bool valid_flags(DWORD flags) { return flags == MEM_READ || flags == MEM_WRITE || flags == MEM_READWRITE; }

// Under s.lock. The remote registration that the descriptor stands for, or nullptr.
Registration *find_remote(Socket &s, const Descriptor &d) {
    if (d.magic != descriptor_magic || d.length == 0) return nullptr;
    const uint64_t last = d.va + (d.length - 1);
    regcache::Interval *found =
        s.remote_registrations.containing(d.va, last, search_everything, [&](regcache::Interval *node) {
            return node->first == d.va && node->last == last && registration_of(node)->entry->key() == d.key;
        });
    return found ? registration_of(found) : nullptr;
}

void release_tree(Socket &s, regcache::IntervalTree &tree) {
    for (;;) {
        regcache::Entry *entry;
        {
            Guard guard(s.lock);
            regcache::Interval *node = tree.overlapping(0, UINT64_MAX);
            if (!node) return;
            entry = forget(s, registration_of(node));
        }
        process->cache->release(entry);
    }
}

} // namespace

Registration *find_local(Socket &s, uint64_t start, uint32_t length, uint32_t right) {
    const uint64_t last = start + (length - 1);
    if (last < start) return nullptr;
    regcache::Interval *found =
        s.local_registrations.containing(start, last, search_everything, [right](regcache::Interval *node) {
            const regcache::Entry *entry = registration_of(node)->entry;
            return (entry->rights() & right) && entry->usable();
        });
    return found ? registration_of(found) : nullptr;
}

Registration *find_handle(Socket &s, HANDLE handle) {
    const uintptr_t value = reinterpret_cast<uintptr_t>(handle);
    const uint32_t index = (static_cast<uint32_t>(value & ((uintptr_t{1} << generation_shift) - 1)) >> 2) - 1;
    if (value & 3 || index >= s.handle_count || s.handles[index].generation != value >> generation_shift) return nullptr;
    return s.handles[index].registration;
}

void release_remote_registrations(Socket &s) { release_tree(s, s.remote_registrations); }

void release_all_registrations(Socket &s) {
    release_tree(s, s.remote_registrations);
    release_tree(s, s.local_registrations);
}

void free_registrations(Socket &s) {
    while (Registration *r = spare(s)) heap_delete(r);
    heap_free(s.handles);
    s.handles = nullptr;
    s.handle_count = s.free_handle = 0;
}

// --- the extension functions ---------------------------------------------------------------------------------------------

HANDLE WSPAPI san_register_memory(SOCKET handle, PVOID buffer, DWORD length, DWORD flags, LPINT error) {
    SocketRef s(handle);
    int problem = !s ? WSAENOTSOCK : !valid_flags(flags) ? WSAEINVAL : !buffer || length == 0 ? WSAEFAULT : 0;
    Registered registered = {};
    if (!problem) problem = register_range(*s, buffer, length, flags, registered);
    if (problem) fail(error, problem);
    return problem ? nullptr : registered.handle;
}

int WSPAPI san_deregister_memory(SOCKET handle, HANDLE registration, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    regcache::Entry *entry;
    {
        Guard guard(s->lock);
        Registration *r = find_handle(*s, registration);
        if (!r || r->in_use) return fail(error, WSAEINVAL);
        entry = forget(*s, r);
    }
    process->cache->release(entry);
    return 0;
}

int WSPAPI san_register_rdma_memory(SOCKET handle, PVOID buffer, DWORD length, DWORD flags, LPVOID descriptor,
                                    LPDWORD descriptor_length, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!descriptor_length) return fail(error, WSAEFAULT);
    // The switch probes for the size: answer before looking at the buffer.
    if (!descriptor || *descriptor_length < sizeof(Descriptor)) {
        *descriptor_length = sizeof(Descriptor);
        return fail(error, WSAEFAULT);
    }
    if (!valid_flags(flags)) return fail(error, WSAEINVAL);
    if (!buffer || length == 0) return fail(error, WSAEFAULT);
    // The peer's reading needs the NIC to read, its writing the NIC to write: the local rights that go with it.
    const uint32_t rights = flags | (flags & MEM_READ ? regcache::remote_read : 0u) |
                            (flags & MEM_WRITE ? regcache::remote_write : 0u);
    Registered registered = {};
    const int problem = register_range(*s, buffer, length, rights, registered);
    if (problem) return fail(error, problem);
    const Descriptor d = {descriptor_magic, flags, address_of(buffer), registered.key, length, 0};
    memcpy(descriptor, &d, sizeof d);
    *descriptor_length = sizeof d;
    return 0;
}

int WSPAPI san_deregister_rdma_memory(SOCKET handle, LPVOID descriptor, DWORD descriptor_length, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!descriptor || descriptor_length < sizeof(Descriptor)) return fail(error, WSAEINVAL);
    Descriptor d;
    memcpy(&d, descriptor, sizeof d);
    regcache::Entry *entry;
    {
        Guard guard(s->lock);
        Registration *r = find_remote(*s, d);
        if (!r) return fail(error, WSAEINVAL);
        entry = forget(*s, r);
    }
    process->cache->release(entry); // the peer's access has ended when this returns
    return 0;
}

// Inside VirtualFree and its like, perhaps with the heap's lock held: no heap from here on down.
int WSPAPI san_cache_callback(PVOID address, SIZE_T size, LPINT error) {
    if (!process->cache) return fail(error, WSAEINVAL);
    // Size 0: a whole view, whose size only the system knows; what lies at its start stands for it.
    const size_t hit = process->cache->invalidate(address_of(address), size ? size : 1);
    return hit ? 0 : fail(error, WSAEINVAL);
}

} // namespace sanprov
