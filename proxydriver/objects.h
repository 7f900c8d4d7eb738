// SPDX-License-Identifier: GPL-2.0-or-later
//
// objects.h: what a process makes through its handle: completion queues, queue pairs, regions, listeners. They live in one
// table per NIC; the id in it is both what user mode names the object by and the cookie in the NIC's events, so neither a
// stale event nor a made-up id ever reaches freed memory.
#pragma once

#include "memory.h"

namespace sanproxy {

struct Context;
struct Device;

enum class Kind : uint8_t { cq = 1, qp, region, listener };

// Common part. Reference counted: one reference is the table's, the others belong to users of a lookup.
struct Object {
    Kind kind;
    uint32_t id = 0;
    Context *context = nullptr;
    uint64_t cookie = 0;
    uint64_t connection = 0; // under mutex: given at the first hand-over, stays
    volatile LONG references = 1;

    Mutex mutex;       // operations on the object; never taken with the device's lock held
    bool dead = false; // under mutex: gone at the NIC, only the memory is left

    // Under the device's lock:
    LIST_ENTRY context_link; // in Context::objects while it is in the table
    LIST_ENTRY ready_link;   // in Context::ready while events != 0
    uint32_t events = 0;     // SANPROXY_EVENT_*
    uint32_t reason = 0, status = 0;

    explicit Object(Kind k) : kind(k) {}
};

struct CompletionQueue : Object {
    CompletionQueue() : Object(Kind::cq) {}
    uint32_t cqn = 0;
    uint32_t users = 0; // under the device's lock: QPs that complete into it
    SharedPages pages;
};

struct QueuePair : Object {
    QueuePair() : Object(Kind::qp) {}
    uint32_t qpn = 0;
    uint32_t remote_access = 0;
    CompletionQueue *send_cq = nullptr, *recv_cq = nullptr; // referenced; nullptr on the way to another process
    SharedPages pages;
};

struct Region : Object {
    Region() : Object(Kind::region) {}
    uint64_t key = 0;        // 0: locked, but not registered with the NIC
    uint32_t access = 0;     // as registered: the most that EXPOSE may give
    bool exposed = false;
    uint64_t va = 0, length = 0;
    LockedRange range;
};

// A connection request. It stays here until it is answered, so that nobody answers a request that is not his.
struct PendingRequest {
    uint32_t request;
    uint32_t private_len;
    uint32_t peer_ip, local_ip;
    uint16_t peer_port, local_port;
    bool taken; // by GET_REQUEST
};

struct Listener : Object {
    Listener() : Object(Kind::listener) {}
    ~Listener() { pool_free(requests); }
    uint32_t number = 0; // at the NIC
    // Under the device's lock: the oldest first.
    PendingRequest *requests = nullptr;
    uint32_t capacity = 0, count = 0;

    // Under the device's lock. False: not there.
    bool forget(uint32_t request) {
        for (uint32_t i = 0; i < count; ++i) {
            if (requests[i].request != request) continue;
            for (uint32_t j = i + 1; j < count; ++j) requests[j - 1] = requests[j];
            --count;
            return true;
        }
        return false;
    }
};

// Ids: slot | generation << slot_bits, never 0.
class ObjectTable {
  public:
    static constexpr uint32_t slot_bits = 20, chunk_bits = 8;

    void free();
    // All under the device's lock. insert gives the object its id; false: full or no memory.
    bool insert(Object *object);
    void remove(Object *object);
    Object *find(uint32_t id) const;

  private:
    static constexpr uint32_t chunk_size = 1u << chunk_bits;
    static constexpr uint32_t max_chunks = 1u << (slot_bits - chunk_bits);
    struct Slot {
        Object *object;
        uint32_t generation; // 1 .. 2^(32 - slot_bits) - 1
        uint32_t next_free;  // slot + 1
    };
    Slot *slot(uint32_t index) const { return &chunks_[index >> chunk_bits][index & (chunk_size - 1)]; }

    Slot *chunks_[max_chunks] = {};
    uint32_t chunk_count_ = 0;
    uint32_t first_free_ = 0; // slot + 1; 0: none
};

} // namespace sanproxy
