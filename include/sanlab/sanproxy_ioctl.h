/* SPDX-License-Identifier: MIT */
/*
 * sanproxy_ioctl.h: the contract between the SAN provider (user mode) and its proxy driver. Plain C.
 *
 * The driver is opened as SANPROXY_DEVICE_NAME (further NICs: the name followed by 1, 2, ...). A handle serves the process
 * that opened it and nobody else; closing its last reference, or the end of the process, releases everything made through it.
 *
 * Every request is METHOD_BUFFERED and carries one structure, used for input and output alike: both buffers have exactly
 * its size, and it starts with a sanproxy_header. All addresses are 64 bits wide, so 32-bit callers use the same structures.
 * A malformed request (version, size, code) fails as an I/O request; anything else succeeds as one and puts its outcome
 * into header.result, so that no error is lost in translation.
 *
 * Objects (completion queues, queue pairs, regions, listeners) have ids which mean something to this handle only. Queues
 * live in memory which the driver allocates, maps into the process and describes to the NIC; the process uses them as
 * snic_hw.h section 9 says. IP addresses and ports are in host order, as in snic_hw.h.
 */
#ifndef SANLAB_SANPROXY_IOCTL_H
#define SANLAB_SANPROXY_IOCTL_H

#ifndef SANLAB_NO_STDINT
#include <stdint.h>
#endif
#include <stddef.h>

#ifdef __cplusplus
#define SANPROXY_CHECK(cond) static_assert(cond, #cond)
#else
#define SANPROXY_CHECK(cond) _Static_assert(cond, #cond)
#endif
#define SANPROXY_SIZE(type, size) SANPROXY_CHECK(sizeof(type) == (size))

#define SANPROXY_VERSION 1u
#define SANPROXY_DEVICE_NAME "SanProxy" /* \\.\SanProxy for CreateFile, \DosDevices\SanProxy in the kernel */

/* {7B1E2C54-93D0-4B7E-8D0B-5A4E00000001}: the device interface class that the driver registers. */
#define SANPROXY_INTERFACE_GUID \
    {0x7B1E2C54, 0x93D0, 0x4B7E, {0x8D, 0x0B, 0x5A, 0x4E, 0x00, 0x00, 0x00, 0x01}}

/* CTL_CODE(0x8A4E, 0x800 + n, METHOD_BUFFERED, FILE_ANY_ACCESS) */
#define SANPROXY_CODE(n) ((0x8A4Eu << 16) | ((0x800u + (n)) << 2))
#define SANPROXY_IOCTL_QUERY SANPROXY_CODE(0)        /* sanproxy_query */
#define SANPROXY_IOCTL_OPEN SANPROXY_CODE(1)         /* sanproxy_open */
#define SANPROXY_IOCTL_WAIT_EVENTS SANPROXY_CODE(2)  /* sanproxy_wait_events */
#define SANPROXY_IOCTL_WAKE SANPROXY_CODE(3)         /* sanproxy_header */
#define SANPROXY_IOCTL_CREATE_CQ SANPROXY_CODE(8)    /* sanproxy_create_cq */
#define SANPROXY_IOCTL_CREATE_QP SANPROXY_CODE(9)    /* sanproxy_create_qp */
#define SANPROXY_IOCTL_STOP_QP SANPROXY_CODE(10)     /* sanproxy_object */
#define SANPROXY_IOCTL_CLOSE SANPROXY_CODE(11)       /* sanproxy_object */
#define SANPROXY_IOCTL_REGISTER SANPROXY_CODE(16)    /* sanproxy_register */
#define SANPROXY_IOCTL_EXPOSE SANPROXY_CODE(17)      /* sanproxy_expose */
#define SANPROXY_IOCTL_REVOKE SANPROXY_CODE(18)      /* sanproxy_object */
#define SANPROXY_IOCTL_LISTEN SANPROXY_CODE(24)      /* sanproxy_listen */
#define SANPROXY_IOCTL_GET_REQUEST SANPROXY_CODE(25) /* sanproxy_get_request */
#define SANPROXY_IOCTL_ACCEPT SANPROXY_CODE(26)      /* sanproxy_reply */
#define SANPROXY_IOCTL_REJECT SANPROXY_CODE(27)      /* sanproxy_reply */
#define SANPROXY_IOCTL_CONNECT SANPROXY_CODE(28)     /* sanproxy_connect */
#define SANPROXY_IOCTL_DISCONNECT SANPROXY_CODE(29)  /* sanproxy_object */
#define SANPROXY_IOCTL_OFFER SANPROXY_CODE(32)       /* sanproxy_offer */
#define SANPROXY_IOCTL_LOOK SANPROXY_CODE(33)        /* sanproxy_offer */
#define SANPROXY_IOCTL_CLAIM SANPROXY_CODE(34)       /* sanproxy_claim */

enum sanproxy_result {
    SANPROXY_OK = 0,
    SANPROXY_BAD_PARAMETER = 1, /* a field is out of range */
    SANPROXY_BAD_ADDRESS = 2,   /* memory outside the process, not accessible in that direction, or wrapping */
    SANPROXY_NO_RESOURCES = 3,  /* memory, lockable pages, or a table of the NIC */
    SANPROXY_NOT_FOUND = 4,     /* no such object of that kind; nothing queued */
    SANPROXY_BAD_STATE = 5,     /* not now: not opened, not connected, already listening, a wait is pending */
    SANPROXY_UNSUPPORTED = 6,
    SANPROXY_LINK_DOWN = 7,     /* the NIC has joined no fabric */
    SANPROXY_GONE = 8,          /* the connector has given up; the object has been closed meanwhile */
    SANPROXY_DEVICE_FAILED = 9  /* the NIC does not answer, or was removed */
};

struct sanproxy_header {
    uint32_t version;    /* in: SANPROXY_VERSION */
    uint32_t size;       /* in: of the whole structure */
    uint32_t result;     /* out: enum sanproxy_result */
    uint32_t nic_status; /* out: enum snic_status of the command that failed, else 0 */
};
SANPROXY_SIZE(struct sanproxy_header, 16);

/* --- The NIC ------------------------------------------------------------------------------------------------------ */
#define SANPROXY_MAX_ADDRESSES 16u
struct sanproxy_address {
    uint32_t ip;
    uint32_t prefix;
    uint64_t guid;
};
SANPROXY_SIZE(struct sanproxy_address, 16);

#define SANPROXY_CAP_CHEAP_REVOKE 0x1u /* REVOKE keeps the region at the NIC; without: it leaves the NIC, stays locked */
#define SANPROXY_CAP_RDMA_READ 0x2u

/* QUERY: limits and the addresses of this moment. Allowed before OPEN. */
struct sanproxy_query {
    struct sanproxy_header header;
    uint32_t caps;    /* out: SANPROXY_CAP_* */
    uint32_t link_up; /* out */
    uint64_t max_message; /* out: bytes of one SEND, WRITE or READ */
    uint64_t max_region;  /* out: bytes of one region */
    uint32_t max_sge, max_wqe, max_cqe, max_private_data; /* out */
    uint32_t max_qp, max_cq, max_mr;                      /* out: of the NIC, for everybody */
    uint32_t address_count;                               /* out */
    struct sanproxy_address addresses[SANPROXY_MAX_ADDRESSES]; /* out */
};
SANPROXY_SIZE(struct sanproxy_query, 16 + 24 + 32 + 16 * SANPROXY_MAX_ADDRESSES);

/* OPEN: gives the handle its doorbell page and protection domain. Once. */
struct sanproxy_open {
    struct sanproxy_header header;
    uint64_t doorbell_va; /* out: SNIC_PAGE_SIZE bytes, write only (SNIC_DB_*) */
    uint32_t doorbell_page;
    uint32_t reserved;
};
SANPROXY_SIZE(struct sanproxy_open, 32);

/* --- Events: one wait may be pending on a handle ------------------------------------------------------------------- */
#define SANPROXY_EVENT_CQ 0x1u          /* an armed CQ has entries */
#define SANPROXY_EVENT_CQ_ERROR 0x2u    /* it has overflowed */
#define SANPROXY_EVENT_CONNECTED 0x4u   /* QP: established */
#define SANPROXY_EVENT_CONNECT_FAILED 0x8u /* QP: reason */
#define SANPROXY_EVENT_DISCONNECTED 0x10u  /* QP: reason */
#define SANPROXY_EVENT_QP_FATAL 0x20u   /* QP: status */
#define SANPROXY_EVENT_REQUEST 0x40u    /* listener: GET_REQUEST has something */
#define SANPROXY_EVENT_LINK 0x80u       /* id 0: the link has changed */
#define SANPROXY_EVENT_WAKE 0x100u      /* id 0: WAKE */
#define SANPROXY_EVENT_FAILED 0x200u    /* id 0: the NIC does not answer or has been removed; nothing completes any more */

struct sanproxy_event {
    uint32_t id;     /* of the object; 0: the handle itself */
    uint32_t events; /* SANPROXY_EVENT_*, everything since the object was last reported */
    uint64_t cookie; /* of the object */
    uint32_t reason; /* enum snic_conn_reason */
    uint32_t status; /* enum snic_wc_status */
};
SANPROXY_SIZE(struct sanproxy_event, 24);

/* WAIT_EVENTS: pends until an object of this handle has an event, then reports up to SANPROXY_MAX_EVENTS of them. */
#define SANPROXY_MAX_EVENTS 32u
struct sanproxy_wait_events {
    struct sanproxy_header header;
    uint32_t count; /* out */
    uint32_t reserved;
    struct sanproxy_event events[SANPROXY_MAX_EVENTS]; /* out */
};
SANPROXY_SIZE(struct sanproxy_wait_events, 24 + 24 * SANPROXY_MAX_EVENTS);

/* --- Queues ---------------------------------------------------------------------------------------------------------- */
struct sanproxy_create_cq {
    struct sanproxy_header header;
    uint32_t entries; /* in: wanted; out: given, a power of two */
    uint32_t id;      /* out */
    uint64_t cookie;  /* in: in its events */
    uint32_t cqn;     /* out: for SNIC_DB_CQ_ARM */
    uint32_t reserved;
    uint64_t ring_va;   /* out: struct snic_cqe[entries] */
    uint64_t record_va; /* out: struct snic_cq_record */
};
SANPROXY_SIZE(struct sanproxy_create_cq, 56);

struct sanproxy_create_qp {
    struct sanproxy_header header;
    uint32_t send_cq, recv_cq;       /* in: ids */
    uint32_t sq_entries, rq_entries; /* in: wanted; out: given, powers of two */
    uint32_t max_send_sge, max_recv_sge; /* in: 1..max_sge */
    uint32_t remote_access;          /* in: SNIC_ACCESS_REMOTE_*, the most that the peer may ever do */
    uint32_t id;                     /* out */
    uint64_t cookie;                 /* in: in its events */
    uint32_t qpn;                    /* out: for SNIC_DB_SQ */
    uint32_t sq_stride, rq_stride;   /* out: bytes */
    uint32_t reserved;
    uint64_t sq_va, rq_va; /* out */
    uint64_t record_va;    /* out: struct snic_qp_record */
};
SANPROXY_SIZE(struct sanproxy_create_qp, 96);

/*
 * STOP_QP: ends the connection and the use of all memory by the QP: when it returns the NIC touches nothing of it any more.
 * Its rings stay mapped until CLOSE, so that a thread that still looks at them is safe.
 * CLOSE: releases any object: region (deregister, unlock, unsecure), listener (pending requests are refused), QP, CQ.
 * REVOKE: the peer's access to a region ends before this returns. The region stays locked.
 * DISCONNECT: ends the connection, the QP flushes.
 */
struct sanproxy_object {
    struct sanproxy_header header;
    uint32_t id;
    uint32_t reserved;
};
SANPROXY_SIZE(struct sanproxy_object, 24);

/* --- Memory ---------------------------------------------------------------------------------------------------------- */
/*
 * REGISTER: secures the range, locks it and registers it, in this order. access: SNIC_ACCESS_*; pages are locked for
 * writing if it has any write right. With a remote right `qp` names the only QP through which a peer reaches the region.
 */
struct sanproxy_register {
    struct sanproxy_header header;
    uint64_t va, length; /* in */
    uint32_t access;     /* in */
    uint32_t qp;         /* in: id, 0 when there is no remote right */
    uint32_t id;         /* out */
    uint32_t reserved;
    uint64_t key;        /* out: for SGEs, and the peer's rkey */
};
SANPROXY_SIZE(struct sanproxy_register, 56);

/* EXPOSE: gives the rights of REGISTER to another QP's peer, under a new key. Needs no locking: the pages still are. */
struct sanproxy_expose {
    struct sanproxy_header header;
    uint32_t id;     /* in: region, registered with a remote right and revoked since */
    uint32_t qp;     /* in: id */
    uint32_t access; /* in: SNIC_ACCESS_*, at most what it was registered with */
    uint32_t reserved;
    uint64_t key;    /* out */
};
SANPROXY_SIZE(struct sanproxy_expose, 40);

/* --- Connections ----------------------------------------------------------------------------------------------------- */
#define SANPROXY_MAX_PRIVATE_DATA 256u

struct sanproxy_listen {
    struct sanproxy_header header;
    uint32_t ip;      /* in: 0: every address of the NIC */
    uint16_t port;    /* in: 1..65535 */
    uint16_t reserved0;
    uint32_t backlog; /* in: 1..1024 */
    uint32_t id;      /* in: 0 new, else the listener whose backlog changes; out */
    uint64_t cookie;  /* in */
};
SANPROXY_SIZE(struct sanproxy_listen, 40);

/* GET_REQUEST: takes the oldest request off the listener; NOT_FOUND if there is none. It must be answered by ACCEPT or REJECT. */
struct sanproxy_get_request {
    struct sanproxy_header header;
    uint32_t listener; /* in: id */
    uint32_t request;  /* out */
    uint32_t peer_ip, local_ip;    /* out */
    uint16_t peer_port, local_port;/* out */
    uint32_t private_len;          /* out */
    uint8_t private_data[SANPROXY_MAX_PRIVATE_DATA]; /* out */
};
SANPROXY_SIZE(struct sanproxy_get_request, 40 + SANPROXY_MAX_PRIVATE_DATA);

/* ACCEPT ties the request to a QP in its first state, which then may be used at once. REJECT: qp is 0. GONE: the connector gave up. */
struct sanproxy_reply {
    struct sanproxy_header header;
    uint32_t listener; /* in: id */
    uint32_t request;  /* in */
    uint32_t qp;       /* in: id */
    uint32_t private_len;
    uint8_t private_data[SANPROXY_MAX_PRIVATE_DATA];
};
SANPROXY_SIZE(struct sanproxy_reply, 32 + SANPROXY_MAX_PRIVATE_DATA);

/* CONNECT: OK means under way; the outcome is the event CONNECTED or CONNECT_FAILED. */
struct sanproxy_connect {
    struct sanproxy_header header;
    uint32_t qp;             /* in: id */
    uint32_t dst_ip, src_ip; /* in */
    uint16_t dst_port, src_port;
    uint32_t timeout_ms; /* in: 1..60000 */
    uint32_t private_len;
    uint8_t private_data[SANPROXY_MAX_PRIVATE_DATA];
};
SANPROXY_SIZE(struct sanproxy_connect, 40 + SANPROXY_MAX_PRIVATE_DATA);

/* --- Handing over to another process --------------------------------------------------------------------------------- */
#define SANPROXY_HANDOVER_STATE 64u
#define SANPROXY_KIND_QP 2u
#define SANPROXY_KIND_LISTENER 4u

/*
 * OFFER: gives a connected QP or a listener up to another process. When it returns the caller has the object no more: the
 * NIC uses none of its memory, posted receives are dropped without completion, rings are unmapped. The driver keeps the
 * connection (messages that arrive wait) until the target process claims it; if that process ends first, the peer sees a
 * reset. BAD_STATE: not connected, or sends are outstanding; NOT_FOUND: no such object or process. Nothing has changed then.
 * LOOK: what a token stands for. Only in the target process; does not use the token up.
 */
struct sanproxy_offer {
    struct sanproxy_header header;
    uint32_t id;         /* OFFER in: QP or listener */
    uint32_t process;    /* OFFER in: id of the target process */
    uint32_t token;      /* OFFER out, LOOK in: not 0; good once, in the target process only */
    uint32_t kind;       /* out: SANPROXY_KIND_* */
    uint64_t connection; /* out: stays with the object, wherever it goes; no two have the same */
    uint8_t state[SANPROXY_HANDOVER_STATE]; /* OFFER in, LOOK out: the provider's, not looked at */
};
SANPROXY_SIZE(struct sanproxy_offer, 40 + SANPROXY_HANDOVER_STATE);

/*
 * CLAIM: uses the token up and makes the object the caller's. `queues` as in CREATE_QP; of a listener only the cookie counts.
 * Whatever fails after the token was found ends the connection, so `queues` of zeros gives an offer up.
 */
struct sanproxy_claim {
    struct sanproxy_header header;
    uint32_t token; /* in */
    uint32_t id;    /* out */
    struct sanproxy_create_qp queues;
};
SANPROXY_SIZE(struct sanproxy_claim, 24 + 96);

#endif
