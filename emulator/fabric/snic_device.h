/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * snic_device.h: one emulated NIC as its owner sees it (plain C).
 *
 * A device is the NIC model (emulator/nic), its port on the fabric and the engine thread that drives both. Its owner is
 * whoever stands for the computer that the NIC sits in: the QEMU device, or nthost with its in-process NIC. The owner
 * gives it the computer's RAM and takes its interrupts; everything else passes through the BARs.
 *
 * Threads: snic_device_mmio_read/_write may be called from any thread, and never wait for the engine: a read answers
 * from a shadow of the registers, a write is queued. The callbacks in snic_device_ops come from the engine thread (but see line).
 * snic_device_destroy joins that thread: do not hold a lock that a callback needs.
 */
#ifndef SANLAB_EMULATOR_FABRIC_SNIC_DEVICE_H
#define SANLAB_EMULATOR_FABRIC_SNIC_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SNIC_DEVICE_MAX_RAM 8
#define SNIC_DEVICE_MAX_VECTORS 32
#define SNIC_DEVICE_NO_ANSWER 0xFFFFu

struct snic_device;

/* One contiguous piece of the computer's RAM. fd < 0: not shared, data then travels through the fabric's rings. */
struct snic_device_ram {
    void *host;         /* where the owner has it mapped */
    uint64_t size;      /* bytes */
    int fd;             /* memfd (or file) behind it, or -1; the device duplicates it */
    uint64_t fd_offset; /* offset of host[0] in fd */
};

struct snic_device_config {
    const char *fabric;     /* path of sanfabricd's socket; NULL or "": no fabric, link stays down */
    const char *name;       /* shown by `sanlab status`; NULL: made from the address */
    const char *ip;         /* IPv4 address, dotted */
    uint32_t prefix;        /* network prefix length, 1..31; 0 means 24 */
    uint64_t guid;          /* native address; 0: derived from ip */
    uint32_t vectors;       /* interrupt vectors the owner offers, 1..SNIC_DEVICE_MAX_VECTORS; 0 means 4 */
    uint32_t doorbell_pages;/* user contexts, 2..4096; 0 means 256 */
    uint32_t max_qp, max_cq, max_mr, max_pd; /* limits; 0 means the default */
    uint32_t max_pages;     /* page addresses that all regions and queues may hold together, 1024..2^28; 0 means 2^24 */
    bool revoke_by_deregister; /* the kind of NIC that has no cheap revoke */
    bool no_direct;         /* never copy straight between the two RAMs */
    uint32_t link_rate_mbit;/* latency and bandwidth model (docs/snic.md, 7.5): Mbit/s; 0: as fast as it goes */
    uint64_t delay_ns, jitter_ns, op_cost_ns; /* each at most 10 s */
    uint32_t fail_command;  /* fault injection: the number (from 1) of an admin command that fails; 0: none */
    uint32_t fail_status;   /* how: enum snic_status, or SNIC_DEVICE_NO_ANSWER; 0 means SNIC_ERR_RESOURCES */
    uint64_t seed;          /* seeds key variants; 0: from the system */
    bool realtime;          /* ask for a real-time priority for the engine */
    uint32_t spin_us;       /* how long the engine polls before it sleeps; 0 means 50 */
};

struct snic_device_ops {
    /*
     * Host address of the RAM behind bus address `addr`. *len: in, bytes wanted; out, bytes contiguous from there (may be
     * less). NULL: not RAM, or not accessible in that direction. The pointer is used until leave() at the latest.
     */
    void *(*map)(void *opaque, uint64_t addr, size_t *len, bool write);
    /* Around every burst of map() calls and uses of their results (QEMU: RCU read lock). May be NULL. */
    void (*enter)(void *opaque);
    void (*leave)(void *opaque);
    /* Message-signalled interrupt: one message on `vector`. Called only while the owner said it uses messages. */
    void (*message)(void *opaque, unsigned vector);
    /*
     * Level of the interrupt line. Called on changes, only while the owner does not use messages; from the engine thread, and
     * from inside snic_device_mmio_write when the guest acknowledges or masks.
     */
    void (*line)(void *opaque, bool level);
    /* One line for the owner's log. level: 0 error, 1 warning, 2 information. */
    void (*log)(void *opaque, int level, const char *text);
};

/*
 * Creates the device and starts its engine. ram: nram pieces, at most SNIC_DEVICE_MAX_RAM (further pieces are simply
 * reached without direct copy). NULL on failure; then *err is one line, which value was wrong and what is accepted.
 */
struct snic_device *snic_device_create(const struct snic_device_config *config, const struct snic_device_ram *ram,
                                       size_t nram, const struct snic_device_ops *ops, void *opaque, char *err,
                                       size_t errlen);
/* Ends all connections; when it returns no peer copies to or from the RAM any more (one that does not answer is waited for a second). */
void snic_device_destroy(struct snic_device *dev);

/* Sizes in bytes of BAR 0 (registers) and BAR 2 (doorbell pages, 4096 bytes each; page 0 is the driver's own). */
uint64_t snic_device_register_bar_size(const struct snic_device *dev);
uint64_t snic_device_doorbell_bar_size(const struct snic_device *dev);

/* bar: 0 or 2. size: 1, 2, 4 or 8. Anything that docs/snic.md does not define reads as zero and writes nothing. */
uint64_t snic_device_mmio_read(struct snic_device *dev, unsigned bar, uint64_t offset, unsigned size);
void snic_device_mmio_write(struct snic_device *dev, unsigned bar, uint64_t offset, uint64_t value, unsigned size);

/* The owner tells which kind of interrupt is in use (MSI-X enabled or not). Default: line. */
void snic_device_use_messages(struct snic_device *dev, bool messages);

/* Bus reset: queued like a register write; a running burst ends first. Returns at once. */
void snic_device_reset(struct snic_device *dev);

/*
 * State as one JSON document (docs/snic.md, "Introspection"): returns its length without the final NUL, and copies at
 * most len bytes of it. Waits for the engine, at most one second.
 */
size_t snic_device_state_json(struct snic_device *dev, char *buf, size_t len);

#ifdef __cplusplus
}
#endif
#endif
