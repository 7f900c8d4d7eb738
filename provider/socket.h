// SPDX-License-Identifier: GPL-2.0-or-later
//
// socket.h: one SAN socket: its state as the switch sees it, its connection (queue pair and completion queue), its
// registrations and its operations.
//
// Threads: any. `lock` guards everything but what is marked otherwise; it is never held across a call to the driver that
// may wait, across an up-call, or while the registration cache works. A socket lives as long as someone holds a reference:
// the switch's (until WSPCloseSocket) and one for every call or up-call in progress. The last one closes the switch handle.
#pragma once

#include "nic.h"
#include "sys.h"
#include "regcache/interval_tree.h"
#include "regcache/regcache.h"

namespace sanprov {

enum class State : uint8_t {
    created,      // WSPBind moves it on
    bound,        // WSPListen, WSPConnect
    listening,    // to its end
    connecting,   // the NIC's event: connected, or back to bound
    connected,    // the peer, an error, or WSPCloseSocket
    disconnected, // the peer has gone or the connection has failed: `error` says how; WSPCloseSocket
    suspended,    // handed over to another process; WSPSocket with the token it comes back with, or WSPCloseSocket
    closed,       // WSPCloseSocket has been called
};

// A registration that the switch made on this socket.
struct Registration : regcache::Interval {
    regcache::Entry *entry = nullptr;
    uint32_t index = 0;  // local: its slot in Socket::handles
    uint32_t in_use = 0; // operations that name it
    bool remote = false;
    Registration *next = nullptr; // free list
};

// What the peer needs to reach an exposed buffer; it travels in the switch's messages. No pointers, one size for all.
struct Descriptor {
    uint32_t magic;
    uint32_t rights; // MEM_READ, MEM_WRITE: what the peer may do
    uint64_t va;
    uint64_t key;
    uint32_t length;
    uint32_t reserved;
};
static_assert(sizeof(Descriptor) == 32);
constexpr uint32_t descriptor_magic = 0x314E4153; // "SAN1"

// An operation on its way through a queue of the NIC.
struct Operation {
    Operation *next = nullptr;
    WSAOVERLAPPED *overlapped = nullptr; // nullptr: one of several pieces, not the last
    uint64_t serial = 0;                 // wr_id: guards against a completion for an earlier user of the slot
    uint64_t remote_va = 0, rkey = 0;
    uint32_t bytes = 0; // of the whole operation
    uint32_t flags = 0; // as given to WSPRecv and friends
    uint8_t opcode = 0; // enum snic_wqe_opcode
    uint8_t wqe_flags = 0;
    uint16_t sges = 0;
    bool notified = false;
    snic_sge sge[SNIC_MAX_SGE];
    Registration *registrations[SNIC_MAX_SGE];
};

// One direction of a queue pair.
struct Ring {
    uint8_t *base = nullptr;
    uint32_t entries = 0, stride = 0;
    uint32_t pi = 0;      // posted
    uint32_t retired = 0; // completed, in order
    volatile uint32_t *pi_record = nullptr;
    Operation **slots = nullptr; // entries of them: who sits there
    Queue<Operation> waiting;    // beyond the ring's depth
    bool full() const { return pi - retired == entries; }
};

struct TableSlot;

struct Socket {
    SOCKET handle = INVALID_SOCKET;        // the provider's own, what the switch passes in
    SOCKET switch_handle = INVALID_SOCKET; // what goes into up-calls
    TableSlot *slot = nullptr;             // counts the references

    CriticalSection lock;
    State state = State::created;
    int error = 0; // of the connection, once it has ended
    bool accepted = false;
    sockaddr_in local = {}, peer = {};
    BOOL debug = FALSE;

    // Network events (events.cc).
    bool setting_up = false; // WSPConnect is making the queues
    HANDLE event = nullptr;
    long event_mask = 0;
    long recorded = 0;
    int connect_error = 0;

    // Handing over (handover.cc): which connection this is, once it has been handed over; the driver's number.
    uint64_t connection = 0;

    // Listening.
    uint32_t listener_id = 0;
    uint32_t backlog = 0;
    bool deferred = false; // `request` waits for the next WSPAccept
    sanproxy_get_request request = {};

    // Connection (queue.cc).
    uint32_t qp_id = 0, qpn = 0, cq_id = 0, cqn = 0;
    snic_qp_record *qp_record = nullptr;
    Ring sq, rq;
    const snic_cqe *cq_ring = nullptr;
    snic_cq_record *cq_record = nullptr;
    uint32_t cq_entries = 0, cq_ci = 0;
    uint64_t serial = 0;
    Operation *free_operations = nullptr;
    void *operation_blocks = nullptr;
    bool read_unfenced = false; // an RDMA read has been posted since the last fence
    uint32_t notified_pending = 0;
    bool armed = false;
    DWORD harvester = 0; // id of the thread that takes completions off the CQ
    uint32_t harvest_depth = 0;

    // Registrations (memory.cc).
    regcache::Owner owner;
    regcache::IntervalTree local_registrations, remote_registrations;
    struct Slot {
        Registration *registration;
        uint32_t generation;
        uint32_t next_free; // index + 1; 0: none
    };
    Slot *handles = nullptr;
    uint32_t handle_count = 0, free_handle = 0; // index + 1
    Registration *free_registrations = nullptr;  // as many as there ever were at a time: the heap is slower than a cached hit
};

// socket_table.cc: handles are slots with a generation, so that a stale one is found out without touching the socket.
bool table_publish(Socket *s);    // gives it its handle and the switch's reference. False: table full
Socket *table_acquire(SOCKET handle); // with a reference; nullptr if the handle names no open socket
bool table_close(SOCKET handle);  // from now on the handle names nothing. True for exactly one caller
SOCKET table_first_open();        // INVALID_SOCKET: none
SOCKET table_next_open(SOCKET after); // in no particular order; INVALID_SOCKET: the first, and the end
void socket_hold(Socket &s);      // another reference, by one who has one
void socket_release(Socket &s);

class SocketRef {
  public:
    explicit SocketRef(SOCKET handle) : socket_(table_acquire(handle)) {}
    ~SocketRef() {
        if (socket_) socket_release(*socket_);
    }
    SocketRef(const SocketRef &) = delete;
    SocketRef &operator=(const SocketRef &) = delete;
    explicit operator bool() const { return socket_ != nullptr; }
    Socket *operator->() const { return socket_; }
    Socket &operator*() const { return *socket_; }

  private:
    Socket *socket_;
};

// sockets.cc
Socket *socket_create(int *error); // published, with the switch's reference and handle
void socket_destroy(Socket *s);    // by the last socket_release
void socket_abort_all();           // closes whatever is open

// queue.cc: the connection's queues.
int queues_create(Socket &s);     // 0 or a Winsock error; s.owner.tag becomes the QP's id
// Takes a connection over from another process: as queues_create, by the driver's token.
int queues_claim(Socket &s, uint32_t token);
void queues_destroy(Socket &s);   // with the last reference, or handed over
Operation *operation_new(Socket &s); // under s.lock
void operation_free(Socket &s, Operation *op); // under s.lock; gives back its hold on registrations
void post(Socket &s, Ring &ring, Operation *op); // under s.lock
// The operation whose completion names this entry, taken out of the ring; nullptr if there is none. Under s.lock.
Operation *retire(Socket &s, Ring &ring, uint32_t index, uint64_t serial);
// Takes every operation out of the queues, in order, without its hold on registrations; under s.lock, after the NIC has
// stopped.
void take_all(Socket &s, Queue<Operation> &sends, Queue<Operation> &receives);

// completion.cc
void harvest(Socket &s);
void arm_if_needed(Socket &s); // under s.lock
// An operation's end as the switch sees it. `op` may be freed by the caller before: only the copies are used.
struct Completion {
    WSAOVERLAPPED *overlapped;
    int error;
    DWORD bytes;
    DWORD flags;
    bool notified;
};
void begin_overlapped(WSAOVERLAPPED *overlapped);
void signal_completion(Socket &s, const Completion &completion);
void signal_all(Socket &s, Queue<Operation> &operations, int error); // ends all of them, without bytes
void on_cq_event(Socket &s);

// events.cc
void record_event(Socket &s, long event, int error); // under s.lock
bool events_start(); // the thread that waits for the driver
void events_stop();

// memory.cc
Registration *find_local(Socket &s, uint64_t start, uint32_t length, uint32_t right); // under s.lock
Registration *find_handle(Socket &s, HANDLE handle);                                   // under s.lock
void release_remote_registrations(Socket &s);
void release_all_registrations(Socket &s);
void free_registrations(Socket &s); // with the last reference

// Under s.lock. Receives may have been posted after the NIC had flushed the queue and before we knew: it looks again when
// its doorbell is rung.
void flush_late(Socket &s);
// Takes the receives that wait for room in their ring out of it, so that a completion moves none of them on.
void hold_back(Socket &s, Queue<Operation> &waiting); // under s.lock

// connect.cc
void connection_lost(Socket &s, int error); // under s.lock

} // namespace sanprov
