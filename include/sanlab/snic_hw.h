/* SPDX-License-Identifier: MIT */
/*
 * snic_hw.h: the contract between the snic device and its software (driver and provider). docs/snic.md explains it; the
 * section numbers below are that manual's. Plain C, little endian, usable by gcc, g++ and clang for Linux and Windows.
 *
 * All addresses named "bus" are what the device puts on the bus: guest physical addresses, or I/O virtual ones behind an
 * IOMMU. Structures in guest memory are naturally aligned. Reserved fields are written as zero and ignored when read.
 */
#ifndef SANLAB_SNIC_HW_H
#define SANLAB_SNIC_HW_H

#ifdef SANLAB_NO_STDINT /* the including file has defined uint8_t .. uint64_t itself (kernel code without a C library) */
#else
#include <stdint.h>
#endif
#include <stddef.h>

#ifdef __cplusplus
#define SNIC_CHECK(cond) static_assert(cond, #cond)
#else
#define SNIC_CHECK(cond) _Static_assert(cond, #cond)
#endif
#define SNIC_SIZE(type, size) SNIC_CHECK(sizeof(type) == (size))
#define SNIC_AT(type, member, offset) SNIC_CHECK(offsetof(type, member) == (offset))

/* --- 1. Identity ------------------------------------------------------------------------------------------------- */
#define SNIC_PCI_VENDOR_ID 0x1234u
#define SNIC_PCI_DEVICE_ID 0x5A4Eu
#define SNIC_PCI_REVISION 0x01u
#define SNIC_PCI_CLASS 0x0280u /* network controller, other */
#define SNIC_VERSION_MAJOR 1u
#define SNIC_VERSION_MINOR 0u

#define SNIC_BAR_REGISTERS 0 /* 64-bit memory, SNIC_REGISTER_BAR_SIZE bytes */
#define SNIC_BAR_DOORBELLS 2 /* 64-bit memory, SNIC_PAGE_SIZE bytes for each doorbell page */
#define SNIC_BAR_MSIX 4      /* 64-bit memory, MSI-X table and pending bits */
#define SNIC_REGISTER_BAR_SIZE 4096u
#define SNIC_PAGE_SHIFT 12
#define SNIC_PAGE_SIZE 4096u

/* --- 2. Registers (BAR 0) ----------------------------------------------------------------------------------------
 * name                      offset  width access reset
 * Accesses are aligned and of the register's width; a 64-bit register may also be written as two 32-bit halves, low first.
 */
#define SNIC_REG_VERSION 0x000     /* 32 RO  major << 16 | minor */
#define SNIC_REG_CAPS 0x004        /* 32 RO  SNIC_CAP_* */
#define SNIC_REG_CTRL 0x008        /* 32 RW  0: SNIC_CTRL_* */
#define SNIC_REG_STATUS 0x00C      /* 32 RO  SNIC_STATUS_* */
#define SNIC_REG_ERROR 0x010       /* 32 RO  0: enum snic_fatal, why STATUS.FATAL is set */
#define SNIC_REG_IRQ_CAUSE 0x014   /* 32 R/W1C 0: bit n: vector n has fired (line interrupts; not set with MSI-X) */
#define SNIC_REG_IRQ_MASK 0x018    /* 32 RW  0: bit n = 1: vector n may assert the line */
#define SNIC_REG_VECTORS 0x01C     /* 32 RO  number of interrupt vectors */
#define SNIC_REG_GUID 0x020        /* 64 RO  native address */
#define SNIC_REG_IP_ADDR 0x028     /* 32 RO  IPv4 address, host order (10.0.0.1 = 0x0A000001) */
#define SNIC_REG_IP_PREFIX 0x02C   /* 32 RO  network prefix length */
#define SNIC_REG_DOORBELL_PAGES 0x030 /* 32 RO number of doorbell pages */
#define SNIC_REG_AQ_SIZE 0x034     /* 32 RW  0: entries of both admin rings, a power of two, 2..SNIC_AQ_MAX_ENTRIES */
#define SNIC_REG_AQ_BASE 0x038     /* 64 RW  0: bus address of the command ring, 64-byte aligned, contiguous */
#define SNIC_REG_ACQ_BASE 0x040    /* 64 RW  0: bus address of the completion ring, 64-byte aligned, contiguous */
#define SNIC_REG_AQ_DOORBELL 0x048 /* 32 WO  number of commands ever posted since ENABLE, modulo 2^32 */
#define SNIC_REG_IRQ_MODERATION 0x04C /* 32 RW 0: least time between two messages of a vector, microseconds, 0..1000 */

#define SNIC_CAP_REKEY 0x1u        /* MODIFY_MR can revoke and re-key; without it only DEREGISTER_MR ends remote access */
#define SNIC_CAP_RDMA_READ 0x2u
#define SNIC_CAP_LARGE_PAGES 0x4u  /* page shifts 21 and 30 besides 12 */

#define SNIC_CTRL_ENABLE 0x1u      /* 0 -> 1: reads AQ_SIZE, AQ_BASE, ACQ_BASE and starts; 1 -> 0: the same as RESET */
#define SNIC_CTRL_RESET 0x2u       /* self-clearing: drops every object and connection; STATUS.RESETTING until done */

#define SNIC_STATUS_READY 0x1u     /* enabled, commands are taken */
#define SNIC_STATUS_RESETTING 0x2u
#define SNIC_STATUS_LINK_UP 0x4u   /* joined to a fabric */
#define SNIC_STATUS_FATAL 0x8u     /* stopped by SNIC_REG_ERROR; only RESET helps */

enum snic_fatal {
    SNIC_FATAL_NONE = 0,
    SNIC_FATAL_AQ_CONFIG = 1, /* ENABLE with a bad AQ_SIZE, AQ_BASE or ACQ_BASE */
    SNIC_FATAL_AQ_DMA = 2,    /* an admin ring is not readable or writable RAM */
    SNIC_FATAL_AQ_INDEX = 3,  /* AQ_DOORBELL moved by more than the ring holds */
    SNIC_FATAL_EQ_DMA = 4     /* the event ring is not writable RAM */
};

#define SNIC_VECTOR_ADMIN 0 /* admin completions; event queues name their own */
#define SNIC_MAX_VECTORS 32u

/* --- 3. Doorbell pages (BAR 2) -----------------------------------------------------------------------------------
 * A page belongs to one context (ATTACH_DOORBELL). Only queues created with that page react to it; others are counted and ignored.
 */
#define SNIC_DB_SQ 0x000     /* 32 WO  QP number: the send queue's producer index has moved */
#define SNIC_DB_CQ_ARM 0x008 /* 32 WO  CQ number: raise one event when the CQ holds an entry at or past its consumer index */

/* --- 4. Page lists -------------------------------------------------------------------------------------------------
 * Describe the memory of a region or a queue: pages of 1 << page_shift bytes; the first byte lies at `offset` in the first page.
 *   levels 0: `root` is the bus address of the first page; the pages are contiguous.
 *   levels 1: `root` is a 4 KiB page of up to 512 page addresses.      (512 pages)
 *   levels 2: `root` is a 4 KiB page of addresses of level-1 pages.    (262,144 pages)
 *   levels 3: one more.                                                (134,217,728 pages)
 * The device reads the list while it executes the command; afterwards its memory may be reused.
 */
struct snic_page_list {
    uint64_t root;     /* bus address; page aligned (levels 0: aligned to 1 << page_shift) */
    uint32_t offset;   /* of the first byte in the first page, < 1 << page_shift */
    uint8_t page_shift;/* 12, 21 or 30 */
    uint8_t levels;    /* 0..3 */
    uint16_t reserved;
};
SNIC_SIZE(struct snic_page_list, 16);
SNIC_AT(struct snic_page_list, offset, 8);
#define SNIC_PAGE_LIST_ENTRIES 512u

/* --- 5. Admin queue ------------------------------------------------------------------------------------------------
 * Command n (counted from 0 since ENABLE) stands in slot n mod size, its completion in the same slot of the completion ring.
 * Commands complete in any order but each into its own slot; a slot may be posted again once its completion has been seen.
 */
#define SNIC_AQ_MAX_ENTRIES 1024u

enum snic_opcode {
    SNIC_CMD_QUERY_DEVICE = 0x01,
    SNIC_CMD_CREATE_PD = 0x10,
    SNIC_CMD_DESTROY_PD = 0x11,
    SNIC_CMD_REGISTER_MR = 0x20,
    SNIC_CMD_MODIFY_MR = 0x21,
    SNIC_CMD_DEREGISTER_MR = 0x22,
    SNIC_CMD_CREATE_EQ = 0x30,
    SNIC_CMD_DESTROY_EQ = 0x31,
    SNIC_CMD_CREATE_CQ = 0x40,
    SNIC_CMD_DESTROY_CQ = 0x41,
    SNIC_CMD_CREATE_QP = 0x50,
    SNIC_CMD_DESTROY_QP = 0x51,
    SNIC_CMD_MODIFY_QP = 0x52,
    SNIC_CMD_QUERY_QP = 0x53,
    SNIC_CMD_REBIND_QP = 0x54,
    SNIC_CMD_LISTEN = 0x60,
    SNIC_CMD_UNLISTEN = 0x61,
    SNIC_CMD_CONNECT = 0x62,
    SNIC_CMD_GET_REQUEST = 0x63,
    SNIC_CMD_ACCEPT = 0x64,
    SNIC_CMD_REJECT = 0x65,
    SNIC_CMD_DISCONNECT = 0x66,
    SNIC_CMD_ATTACH_DOORBELL = 0x70,
    SNIC_CMD_DETACH_DOORBELL = 0x71
};

/* 5.2 Command statuses */
enum snic_status {
    SNIC_OK = 0,
    SNIC_ERR_OPCODE = 1,      /* no such command */
    SNIC_ERR_PARAM = 2,       /* a field is out of range; completion.detail = offset of the field in the command */
    SNIC_ERR_HANDLE = 3,      /* a handle names nothing; detail = offset of the field */
    SNIC_ERR_LIMIT = 4,       /* no free slot in that table */
    SNIC_ERR_DMA = 5,         /* an address in the command is not accessible RAM; detail = offset of the field */
    SNIC_ERR_IN_USE = 6,      /* other objects still refer to it */
    SNIC_ERR_STATE = 7,       /* not allowed in the object's state */
    SNIC_ERR_UNSUPPORTED = 8, /* this NIC lacks the capability */
    SNIC_ERR_LINK = 9,        /* not joined to a fabric */
    SNIC_ERR_RESOURCES = 10   /* the device has no memory for it */
};

/* The first 16 bytes of every command; `body` is one of the structures below. */
struct snic_cmd {
    uint8_t opcode;    /* enum snic_opcode */
    uint8_t reserved0;
    uint16_t reserved1;
    uint32_t reserved2;
    uint64_t cookie;   /* returned in the completion */
    uint8_t body[48];
};
SNIC_SIZE(struct snic_cmd, 64);
SNIC_AT(struct snic_cmd, body, 16);

struct snic_cpl {
    uint32_t phase;    /* number of the pass over the ring, from 1: (n / size + 1); written last */
    uint16_t status;   /* enum snic_status */
    uint16_t detail;
    uint64_t cookie;
    uint64_t result[6];/* by command */
};
SNIC_SIZE(struct snic_cpl, 64);
SNIC_AT(struct snic_cpl, cookie, 8);

/* QUERY_DEVICE: writes a struct snic_device_info to `out`. */
struct snic_cmd_query_device {
    uint64_t out; /* bus address, sizeof(struct snic_device_info) bytes, not crossing a page */
    uint64_t reserved[5];
};
struct snic_device_info {
    uint32_t version;
    uint32_t caps;
    uint64_t guid;
    uint32_t ip_addr, ip_prefix;
    uint32_t max_pd, max_mr, max_cq, max_qp, max_eq, max_listen;
    uint32_t max_sge;         /* of a WQE */
    uint32_t max_wqe;         /* entries of a send or receive queue */
    uint32_t max_cqe;         /* entries of a CQ */
    uint32_t max_eqe;
    uint32_t max_rd_atomic;   /* outstanding RDMA reads of a QP */
    uint32_t doorbell_pages;
    uint64_t max_mr_size;     /* bytes */
    uint64_t max_msg_size;    /* bytes of one SEND, WRITE or READ */
    uint32_t max_private_data;
    uint32_t vectors;
    uint64_t reserved[4];
};
SNIC_SIZE(struct snic_device_info, 128);
SNIC_AT(struct snic_device_info, max_mr_size, 72);

/* CREATE_PD: result[0] = pd. DESTROY_PD: IN_USE while regions or QPs belong to it. */
struct snic_cmd_pd {
    uint32_t pd; /* destroy */
    uint32_t reserved0;
    uint64_t reserved[5];
};

/* 6. Memory regions. Access rights; remote ones need `bound_qpn` or the whole PD. */
#define SNIC_ACCESS_LOCAL_READ 0x1u
#define SNIC_ACCESS_LOCAL_WRITE 0x2u
#define SNIC_ACCESS_REMOTE_READ 0x4u
#define SNIC_ACCESS_REMOTE_WRITE 0x8u
#define SNIC_ACCESS_ALL 0xFu
#define SNIC_QPN_ANY 0u /* as bound_qpn: every QP of the region's PD */

/* Key = variant << SNIC_KEY_SLOT_BITS | slot, 64 bits. Local and remote use share it. The slot is never 0, so 0 is never a key. */
#define SNIC_KEY_SLOT_BITS 32

/* REGISTER_MR: result[0] = key. */
struct snic_cmd_register_mr {
    uint32_t pd;
    uint32_t access;    /* SNIC_ACCESS_* */
    uint64_t va;        /* address that SGEs and peers use for the first byte */
    uint64_t length;    /* bytes, 1..max_mr_size; va + length must not wrap */
    struct snic_page_list pages; /* offset must equal va modulo the page size */
    uint32_t bound_qpn; /* peers reach it only through this QP; SNIC_QPN_ANY */
    uint32_t reserved;
};
SNIC_SIZE(struct snic_cmd_register_mr, 48);
SNIC_AT(struct snic_cmd_register_mr, pages, 24);

/* MODIFY_MR (needs SNIC_CAP_REKEY): new rights and binding, and always a new key: result[0]. The old key is dead on completion. */
struct snic_cmd_modify_mr {
    uint64_t key;
    uint32_t access;
    uint32_t bound_qpn;
    uint64_t reserved[4];
};
SNIC_SIZE(struct snic_cmd_modify_mr, 48);

/* DEREGISTER_MR: new uses fail at once; completes when the last operation that uses the region has ended. No byte moves after that. */
struct snic_cmd_deregister_mr {
    uint64_t key;
    uint64_t reserved[5];
};
SNIC_SIZE(struct snic_cmd_deregister_mr, 48);

/* CREATE_EQ: result[0] = eqn. */
struct snic_cmd_create_eq {
    uint32_t entries;   /* power of two, 16..max_eqe */
    uint32_t vector;    /* 0..vectors-1 */
    struct snic_page_list pages;
    uint64_t record;    /* bus address of a struct snic_eq_record, 64-byte aligned */
    uint64_t reserved[2];
};
SNIC_SIZE(struct snic_cmd_create_eq, 48);

/* CREATE_CQ: result[0] = cqn. */
struct snic_cmd_create_cq {
    uint32_t entries;   /* power of two, 16..max_cqe */
    uint32_t eqn;       /* 0: no events, polled only */
    struct snic_page_list pages;
    uint64_t record;    /* bus address of a struct snic_cq_record, 64-byte aligned */
    uint32_t doorbell_page; /* 0..doorbell_pages-1, attached */
    uint32_t reserved0;
    uint64_t cookie;    /* in this CQ's events */
};
SNIC_SIZE(struct snic_cmd_create_cq, 48);

/* DESTROY_EQ, DESTROY_CQ, DESTROY_QP, UNLISTEN, DETACH_DOORBELL, DISCONNECT: one handle. */
struct snic_cmd_handle {
    uint32_t handle;
    uint32_t reserved0;
    uint64_t reserved[5];
};
SNIC_SIZE(struct snic_cmd_handle, 48);

/* CREATE_QP: the parameters do not fit into a command, `params` names them. result[0] = qpn. State: INIT. */
struct snic_cmd_create_qp {
    uint64_t params; /* bus address of a struct snic_qp_params, not crossing a page */
    uint64_t reserved[5];
};
SNIC_SIZE(struct snic_cmd_create_qp, 48);
struct snic_qp_params {
    uint32_t pd;
    uint32_t send_cqn, recv_cqn;
    uint32_t doorbell_page;
    uint32_t eqn;             /* asynchronous and connection events; not 0 */
    uint32_t sq_entries, rq_entries; /* powers of two, 2..max_wqe */
    uint32_t sq_stride, rq_stride;   /* bytes of a WQE slot: 64, 128, 256 or 512, for 1, 3, 9 or 16 SGEs */
    uint32_t rnr_retry;       /* 0..6 times, 7: without limit */
    uint32_t retry_count;     /* 0..7: retransmissions of one segment before the QP fails */
    uint32_t access;          /* SNIC_ACCESS_REMOTE_*: what the peer may do through this QP */
    uint64_t record;          /* bus address of a struct snic_qp_record, 64-byte aligned */
    uint64_t cookie;          /* in this QP's events */
    struct snic_page_list sq_pages, rq_pages;
    uint64_t reserved[4];
};
SNIC_SIZE(struct snic_qp_params, 128);
SNIC_AT(struct snic_qp_params, record, 48);
SNIC_AT(struct snic_qp_params, sq_pages, 64);

/*
 * REBIND_QP: hands a QP to another owner. State INIT or RTS, no send outstanding, no message half received (else STATE). Everything in `params`
 * replaces what CREATE_QP was given; posted receives are dropped without completion, all indices start at 0. QP number, connection and transport stay.
 */
struct snic_cmd_rebind_qp {
    uint32_t qpn;
    uint32_t reserved0;
    uint64_t params; /* bus address of a struct snic_qp_params, not crossing a page */
    uint64_t reserved[4];
};
SNIC_SIZE(struct snic_cmd_rebind_qp, 48);

/* 7.2 Queue pair states */
enum snic_qp_state {
    SNIC_QP_INIT = 1,       /* receives may be posted; sends wait */
    SNIC_QP_CONNECTING = 2, /* CONNECT or ACCEPT under way (the NIC moves it on) */
    SNIC_QP_RTS = 3,        /* connected */
    SNIC_QP_ERROR = 4       /* everything posted is flushed, also what is posted later */
};
/* MODIFY_QP: only to SNIC_QP_ERROR. Ends the connection (the peer sees DISCONNECTED), flushes; completes when no operation uses memory. */
struct snic_cmd_modify_qp {
    uint32_t qpn;
    uint32_t state;
    uint64_t reserved[5];
};
SNIC_SIZE(struct snic_cmd_modify_qp, 48);
/* QUERY_QP (struct snic_cmd_handle): result[0] = state, [1] = SQ consumer index, [2] = RQ consumer index, [3] = remote qpn. */

/* 8. Connections. Addresses in host order. */
#define SNIC_MAX_PRIVATE_DATA 256u

/* LISTEN: result[0] = listener. ip 0: every address of the NIC. A pending request occupies the backlog until ACCEPT or REJECT. */
struct snic_cmd_listen {
    uint32_t ip;
    uint16_t port;      /* 1..65535 */
    uint16_t reserved0;
    uint32_t backlog;   /* 1..1024; further requests are refused with REASON_BACKLOG */
    uint32_t eqn;       /* CONN_REQUEST events */
    uint32_t listener;  /* 0: new; else: change the backlog of this one */
    uint32_t reserved1;
    uint64_t cookie;    /* in its events */
    uint64_t reserved[2];
};
SNIC_SIZE(struct snic_cmd_listen, 48);

/* CONNECT: completes when the request is on its way; the outcome is the event CONN_ESTABLISHED or CONN_FAILED. QP: INIT -> CONNECTING. */
struct snic_cmd_connect {
    uint32_t qpn;
    uint32_t dst_ip;
    uint32_t src_ip;
    uint16_t dst_port, src_port;
    uint64_t private_data; /* bus address, 0: none; not crossing a page */
    uint32_t private_len;  /* 0..SNIC_MAX_PRIVATE_DATA */
    uint32_t timeout_ms;   /* 1..60000 */
    uint64_t reserved[2];
};
SNIC_SIZE(struct snic_cmd_connect, 48);

/* GET_REQUEST: writes the connector's private data to `out`. result[0] = its length. */
struct snic_cmd_get_request {
    uint32_t request;
    uint32_t out_len;   /* 0..SNIC_MAX_PRIVATE_DATA */
    uint64_t out;       /* bus address, not crossing a page */
    uint64_t reserved[4];
};
SNIC_SIZE(struct snic_cmd_get_request, 48);

/* ACCEPT: ties `request` to `qpn` (INIT -> RTS; CONN_ESTABLISHED follows when the connector has confirmed).
 * REJECT: qpn unused. STATE: the connector has given up (the request is gone then). */
struct snic_cmd_reply {
    uint32_t request;
    uint32_t qpn;
    uint64_t private_data;
    uint32_t private_len;
    uint32_t reserved0;
    uint64_t reserved[3];
};
SNIC_SIZE(struct snic_cmd_reply, 48);

/* ATTACH_DOORBELL: result[0] = page number (1..); page 0 always belongs to the driver. */

/* --- 9. Queues in guest memory ---------------------------------------------------------------------------------------
 * Indices count entries since creation, modulo 2^32; the slot is index mod entries.
 */
enum snic_wqe_opcode {
    SNIC_WR_SEND = 1,
    SNIC_WR_RDMA_WRITE = 2,
    SNIC_WR_RDMA_READ = 3,
    SNIC_WR_RECV = 4
};
#define SNIC_WQE_SIGNALED 0x01u /* completion also on success (errors always complete) */
#define SNIC_WQE_FENCE 0x02u    /* starts only after all earlier RDMA reads of the QP have ended */
#define SNIC_WQE_SOLICITED 0x04u

struct snic_sge {
    uint64_t va;
    uint64_t key;
    uint32_t length;
    uint32_t reserved;
};
SNIC_SIZE(struct snic_sge, 24);

#define SNIC_MAX_SGE 16u
struct snic_wqe {
    uint8_t opcode;   /* enum snic_wqe_opcode */
    uint8_t flags;    /* SNIC_WQE_* */
    uint16_t num_sge; /* 0..(stride - 40) / 24, at most SNIC_MAX_SGE */
    uint32_t imm;     /* SEND: delivered in the receiver's completion */
    uint64_t wr_id;   /* returned in the completion */
    uint64_t remote_va; /* RDMA */
    uint64_t rkey;
    uint64_t reserved;
    struct snic_sge sge[SNIC_MAX_SGE]; /* as many as num_sge; sum of lengths <= max_msg_size */
};
SNIC_SIZE(struct snic_wqe, 40 + 24 * SNIC_MAX_SGE);
SNIC_AT(struct snic_wqe, sge, 40);
#define SNIC_WQE_HEADER_SIZE 40u
#define SNIC_MIN_STRIDE 64u
#define SNIC_MAX_STRIDE 512u

/*
 * QP record. Post: write the WQE, release-store sq_pi, full fence, load kick; if non-zero, write the QP number to SNIC_DB_SQ of the QP's page.
 * The device clears kick while it watches sq_pi by itself, and sets it (then looks once more) before it stops watching. Software never writes kick
 * after creation; it starts as 1. Receives need no doorbell.
 */
struct snic_qp_record {
    uint32_t sq_pi;
    uint32_t rq_pi;
    uint32_t reserved0[6];
    uint32_t kick;  /* written by the device */
    uint32_t sq_ci; /* written by the device: send slots given back (their WQEs have been read and executed) */
    uint32_t rq_ci; /* written by the device: receive slots given back */
    uint32_t reserved1[5];
};
SNIC_SIZE(struct snic_qp_record, 64);
SNIC_AT(struct snic_qp_record, kick, 32);

/* CQ record: ci = entries that software has consumed. Arm: store ci, then write the CQ number to SNIC_DB_CQ_ARM. */
struct snic_cq_record {
    uint32_t ci;
    uint32_t reserved[15];
};
SNIC_SIZE(struct snic_cq_record, 64);

/* 9.4 Completion statuses */
enum snic_wc_status {
    SNIC_WC_SUCCESS = 0,
    SNIC_WC_LOC_LEN_ERR = 1,     /* lengths of the SGEs exceed max_msg_size; or a message is longer than the receive */
    SNIC_WC_LOC_QP_OP_ERR = 2,   /* opcode, flags or num_sge not allowed here */
    SNIC_WC_LOC_PROT_ERR = 3,    /* key, PD, rights or bounds of a local SGE; or its memory is not RAM */
    SNIC_WC_WR_FLUSH_ERR = 4,    /* QP in ERROR */
    SNIC_WC_REM_INV_REQ_ERR = 5, /* the peer found the request malformed, or too long for its receive */
    SNIC_WC_REM_ACCESS_ERR = 6,  /* the peer's key, PD, binding, rights, state or bounds forbid it */
    SNIC_WC_REM_OP_ERR = 7,      /* the peer could not complete it (its receive's memory, for one) */
    SNIC_WC_RETRY_EXC_ERR = 8,   /* no acknowledgement: retransmissions used up, or the link to the peer is down */
    SNIC_WC_RNR_RETRY_EXC_ERR = 9 /* the peer never had a receive posted */
};

/* CQE. Valid when phase == (index / entries + 1) for the consumer index. `phase` is written last. */
struct snic_cqe {
    uint64_t wr_id;
    uint32_t byte_len; /* RECV: of the message; else of the operation */
    uint32_t qpn;
    uint32_t imm;
    uint8_t opcode;    /* enum snic_wqe_opcode */
    uint8_t status;    /* enum snic_wc_status */
    uint16_t reserved;
    uint32_t wqe_index;/* the WQE's index in its queue */
    uint32_t phase;
};
SNIC_SIZE(struct snic_cqe, 32);
SNIC_AT(struct snic_cqe, phase, 28);

/* --- 10. Events ----------------------------------------------------------------------------------------------------- */
enum snic_event_type {
    SNIC_EV_CQ = 1,              /* an armed CQ has entries: handle = cqn */
    SNIC_EV_CQ_ERROR = 2,        /* CQ overflow: handle = cqn; its QPs go to ERROR */
    SNIC_EV_QP_FATAL = 3,        /* QP went to ERROR for `status` (enum snic_wc_status): handle = qpn */
    SNIC_EV_CONN_REQUEST = 4,    /* handle = listener; request, addresses, private_len */
    SNIC_EV_CONN_ESTABLISHED = 5,/* handle = qpn */
    SNIC_EV_CONN_FAILED = 6,     /* handle = qpn, reason; QP back in INIT */
    SNIC_EV_DISCONNECTED = 7,    /* handle = qpn, reason; QP in ERROR */
    SNIC_EV_REQUEST_GONE = 8,    /* the connector gave up: handle = listener; request */
    SNIC_EV_LINK = 9,            /* handle = 1: joined to a fabric, 0: not */
    SNIC_EV_QP_DRAINED = 10      /* QP in ERROR holds nothing any more: handle = qpn */
};
enum snic_conn_reason {
    SNIC_REASON_NONE = 0,
    SNIC_REASON_NO_LISTENER = 1, /* a NIC answered: nobody listens there */
    SNIC_REASON_BACKLOG = 2,     /* the listener's backlog is full */
    SNIC_REASON_REJECTED = 3,    /* REJECT */
    SNIC_REASON_UNREACHABLE = 4, /* no NIC has that address */
    SNIC_REASON_TIMEOUT = 5,     /* no answer */
    SNIC_REASON_PEER_CLOSED = 6, /* DISCONNECT, MODIFY_QP or DESTROY_QP at the peer, or its QP failed */
    SNIC_REASON_LINK_DOWN = 7    /* the peer's NIC is gone, or the link */
};

/* EQE. Valid when phase == (index / entries + 1). */
struct snic_eqe {
    uint8_t type;       /* enum snic_event_type */
    uint8_t reason;     /* enum snic_conn_reason */
    uint8_t status;     /* enum snic_wc_status */
    uint8_t reserved0;
    uint32_t handle;
    uint64_t cookie;    /* of the object, as given at its creation */
    uint32_t request;
    uint32_t private_len;
    uint32_t peer_ip, local_ip;
    uint16_t peer_port, local_port;
    uint32_t reserved1[6];
    uint32_t phase;     /* written last */
};
SNIC_SIZE(struct snic_eqe, 64);
SNIC_AT(struct snic_eqe, phase, 60);

/* EQ record: ci = events that software has consumed. When the ring is full the device keeps events back (bounded) until ci moves. */
struct snic_eq_record {
    uint32_t ci;
    uint32_t reserved[15];
};
SNIC_SIZE(struct snic_eq_record, 64);

#endif
