/* SPDX-License-Identifier: MIT */
/*
 * fabric_wire.h: what passes between two NICs, and between a NIC and sanfabricd. docs/fabric.md explains it. Plain C.
 *
 * A NIC connects to the manager's UNIX stream socket and sends HELLO with its RAM descriptors. For every pair of NICs the
 * manager makes one link: a memfd with two rings, one eventfd for each end; both ends get them with LINK. From then on data
 * flows without the manager. Ring contents come from another process: read once into a local, checked, then used.
 */
#ifndef SANLAB_FABRIC_WIRE_H
#define SANLAB_FABRIC_WIRE_H

#include "sanlab/snic_hw.h"

/* --- 1. Rings: one producer, one consumer, a byte ring of records ------------------------------------------------ */
#define FABRIC_COOKIE 0x53414E46u /* "FNAS" in memory order */
#define FABRIC_VERSION 2u
#define FABRIC_RECORD_ALIGN 64u
#define FABRIC_RING_BYTES (1u << 20) /* data bytes of a ring, a power of two */

struct fabric_ring {
    uint32_t cookie;
    uint32_t version;
    uint32_t bytes;     /* FABRIC_RING_BYTES */
    uint32_t attached;  /* the producer has mapped it */
    uint32_t reserved0[12];
    uint64_t head;      /* producer: bytes ever written; a record becomes visible when head passes it */
    uint32_t starved;   /* producer found no room and may sleep: the consumer clears it and writes the producer's eventfd after moving tail */
    uint32_t reserved1[13];
    uint64_t tail;      /* consumer: bytes ever consumed */
    uint64_t reserved2[7];
    uint32_t waiting;   /* consumer sleeps: the producer writes its eventfd after moving head */
    uint32_t reserved3[15];
    /* data[bytes] follows, at offset FABRIC_RING_HEADER */
};
#define FABRIC_RING_HEADER 4096u
SNIC_SIZE(struct fabric_ring, 256);
SNIC_AT(struct fabric_ring, head, 64);
SNIC_AT(struct fabric_ring, starved, 72);
SNIC_AT(struct fabric_ring, tail, 128);
SNIC_AT(struct fabric_ring, waiting, 192);

/* A link's memfd: the ring from end 0 to end 1, then the ring from end 1 to end 0. */
#define FABRIC_RING_STRIDE (FABRIC_RING_HEADER + FABRIC_RING_BYTES)
#define FABRIC_LINK_BYTES (2u * FABRIC_RING_STRIDE)

/* --- 2. Records ------------------------------------------------------------------------------------------------------ */
enum fabric_type {
    FABRIC_PAD = 1,       /* fills the ring up to its end */
    FABRIC_SEND = 2,      /* requests: one segment each, numbered by psn */
    FABRIC_WRITE = 3,
    FABRIC_READ = 4,
    FABRIC_READ_RESPONSE = 5,
    FABRIC_ACK = 6,       /* all up to and including psn is done */
    FABRIC_NAK = 7,       /* psn is refused: syndrome */
    FABRIC_CM_REQ = 8,
    FABRIC_CM_REP = 9,
    FABRIC_CM_RTU = 10,
    FABRIC_CM_REJ = 11,
    FABRIC_CM_DREQ = 12,
    FABRIC_CM_DREP = 13
};
#define FABRIC_FLAG_FIRST 0x01u   /* of a message */
#define FABRIC_FLAG_LAST 0x02u
#define FABRIC_FLAG_ACK_REQ 0x04u
#define FABRIC_FLAG_DIRECT 0x08u  /* fragments of the sender's RAM follow instead of payload */
#define FABRIC_FLAG_SOLICITED 0x10u

enum fabric_nak {
    FABRIC_NAK_SEQUENCE = 1, /* psn is the one expected: send again from there */
    FABRIC_NAK_RNR = 2,      /* no receive posted: again from psn, later */
    FABRIC_NAK_INVALID = 3,
    FABRIC_NAK_ACCESS = 4,
    FABRIC_NAK_OPERATIONAL = 5
};

struct fabric_msg {
    uint32_t size;        /* whole record: header, fragments or payload; without the padding to FABRIC_RECORD_ALIGN */
    uint8_t type;         /* enum fabric_type */
    uint8_t flags;        /* FABRIC_FLAG_* */
    uint8_t syndrome;     /* NAK: enum fabric_nak; REJ, DREQ: enum snic_conn_reason */
    uint8_t fragments;    /* DIRECT: count, 0..FABRIC_MAX_FRAGMENTS */
    uint32_t dst_qpn;
    uint32_t src_qpn;
    uint32_t psn;
    uint32_t length;      /* bytes of this segment */
    uint64_t remote_va;   /* WRITE, READ: first byte of this segment */
    uint64_t rkey;
    uint32_t msg_length;  /* SEND: of the whole message */
    uint32_t msg_offset;  /* SEND: of this segment in it */
    uint32_t imm;
    uint32_t crc;         /* CRC-32C of header (crc = 0) and what follows it; 0: not computed */
    uint32_t reserved[2];
};
SNIC_SIZE(struct fabric_msg, 64);
SNIC_AT(struct fabric_msg, remote_va, 24);
SNIC_AT(struct fabric_msg, crc, 52);

struct fabric_fragment {
    uint64_t offset; /* in the sender's RAM piece `ram` */
    uint32_t length;
    uint16_t ram;    /* index in its HELLO */
    uint16_t reserved;
};
SNIC_SIZE(struct fabric_fragment, 16);
#define FABRIC_MAX_FRAGMENTS 128u
#define FABRIC_DIRECT_SEGMENT (256u * 1024u)  /* most bytes of a direct segment */
#define FABRIC_PAYLOAD_SEGMENT (32u * 1024u)  /* most bytes of an inline segment */
#define FABRIC_MAX_RECORD (sizeof(struct fabric_msg) + FABRIC_PAYLOAD_SEGMENT)

/* Connection management: follows a fabric_msg of type CM_*; then private_len bytes. psn: first psn the sender will use. */
struct fabric_cm {
    uint64_t connection; /* chosen by the connector, the same in every message of the connection */
    uint32_t src_ip, dst_ip;
    uint16_t src_port, dst_port;
    uint32_t private_len; /* 0..SNIC_MAX_PRIVATE_DATA */
    uint64_t reserved;
};
SNIC_SIZE(struct fabric_cm, 32);

/* --- 3. Manager socket: one fixed-size message each, descriptors by SCM_RIGHTS ------------------------------------- */
enum fabric_ctl_type {
    FABRIC_CTL_HELLO = 1,   /* NIC -> manager. Descriptors: one for each RAM piece that has one */
    FABRIC_CTL_WELCOME = 2, /* manager -> NIC. status; on success one descriptor: the fault page */
    FABRIC_CTL_LINK = 3,    /* manager -> NIC. peer. Descriptors: link memfd, eventfd to wait on, eventfd to wake the peer, the peer's RAM */
    FABRIC_CTL_PEER_DOWN = 4, /* manager -> NIC. peer.instance and link: that link is dead */
    FABRIC_CTL_COUNTERS = 5, /* NIC -> manager, about once a second */
    FABRIC_CTL_STATE_REQUEST = 6, /* manager -> NIC. link: number of the question */
    FABRIC_CTL_STATE = 7    /* NIC -> manager. link: the same number. One descriptor: a memfd that holds the state document (JSON) */
};
enum fabric_ctl_status {
    FABRIC_CTL_OK = 0,
    FABRIC_CTL_BAD_VERSION = 1,
    FABRIC_CTL_BAD_HELLO = 2,
    FABRIC_CTL_DUPLICATE = 3, /* another NIC that is alive has this IP, GUID or name */
    FABRIC_CTL_FULL = 4
};
/* LINK: status. A relayed link ends in the manager, which passes records on to another host: it lives no longer than the manager. */
#define FABRIC_LINK_DIRECT 0u
#define FABRIC_LINK_RELAYED 1u

#define FABRIC_MAX_RAM 8u
#define FABRIC_MAX_NICS 64u
#define FABRIC_MAX_FDS (3u + FABRIC_MAX_RAM)
#define FABRIC_MAX_STATE (16u * 1024u * 1024u) /* most bytes of a state document */

struct fabric_nic {
    uint64_t guid;
    uint64_t instance;  /* random for each start of a NIC */
    uint32_t ip;        /* host order */
    uint32_t prefix;
    char name[32];      /* NUL terminated */
    uint32_t nram;      /* pieces with a descriptor, 0..FABRIC_MAX_RAM */
    uint32_t reserved;
    struct {
        uint64_t size;
        uint64_t fd_offset;
    } ram[FABRIC_MAX_RAM];
};
SNIC_SIZE(struct fabric_nic, 64 + 16 * FABRIC_MAX_RAM);

struct fabric_counters {
    uint64_t tx_bytes, rx_bytes;
    uint64_t tx_segments, rx_segments;
    uint64_t retransmits, rnr_naks;
    uint32_t qps, mrs;
};
SNIC_SIZE(struct fabric_counters, 56);

struct fabric_ctl {
    uint32_t cookie;   /* FABRIC_COOKIE */
    uint16_t version;  /* FABRIC_VERSION */
    uint16_t type;     /* enum fabric_ctl_type */
    uint32_t status;   /* enum fabric_ctl_status */
    uint32_t end;      /* LINK: 0 or 1, which end of the link you are */
    uint64_t link;     /* LINK, PEER_DOWN: random id of the link; STATE_REQUEST, STATE: number of the question */
    struct fabric_nic nic; /* HELLO: yourself; LINK, PEER_DOWN: the peer */
    struct fabric_counters counters;
};
SNIC_SIZE(struct fabric_ctl, 24 + 192 + 56);

/* --- 4. Fault page: written by the manager, read by every NIC for what it receives ------------------------------- */
struct fabric_faults {
    uint32_t cookie, version;
    uint32_t generation;     /* odd while being written */
    uint32_t link_down;      /* 1: nothing passes */
    uint32_t loss_ppm;       /* probability for each record, 0..1000000 */
    uint32_t duplicate_ppm;
    uint32_t corrupt_ppm;
    uint32_t reorder_ppm;    /* held back until the next record */
    uint64_t seed;
    uint64_t delay_ns;       /* added to every record */
    uint64_t jitter_ns;      /* uniform, plus or minus */
    uint64_t reserved;
};
SNIC_SIZE(struct fabric_faults, 64);

/* --- 5. Trunk: a TCP connection between the managers of two hosts. Frames, each a header and its payload ---------- */
enum trunk_type {
    TRUNK_HELLO = 1,    /* struct trunk_hello; first frame of both sides */
    TRUNK_AUTH = 2,     /* 32 bytes: HMAC-SHA256(secret, "sanlab trunk" | role | own nonce | peer's nonce); role 'J' joins, 'L' listens */
    TRUNK_NIC_UP = 3,   /* struct fabric_nic with nram 0; `from`: the sender's number for it */
    TRUNK_NIC_DOWN = 4, /* `from` */
    TRUNK_RECORD = 5,   /* a record as in a ring; `from` and `to`: the numbers of the two NICs */
    TRUNK_PING = 6      /* about once a second; a trunk that is silent for five counts as dead */
};
struct trunk_frame {
    uint32_t size;  /* header and payload; at most TRUNK_MAX_FRAME */
    uint16_t type;  /* enum trunk_type */
    uint16_t reserved;
    uint64_t from, to;
};
SNIC_SIZE(struct trunk_frame, 24);
struct trunk_hello {
    uint32_t cookie;   /* FABRIC_COOKIE */
    uint32_t version;  /* FABRIC_VERSION */
    uint64_t manager;  /* random id: a manager does not join itself */
    uint8_t nonce[32];
};
SNIC_SIZE(struct trunk_hello, 48);
#define TRUNK_MAX_FRAME (sizeof(struct trunk_frame) + FABRIC_MAX_RECORD)

#endif
