// SPDX-License-Identifier: GPL-2.0-or-later
// The engine: one thread that owns a NIC model and its port. Other threads only queue register writes and read shadows.
#include "snic_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fd.h"
#include "irq_unit.h"
#include "nic/nic.h"
#include "port.h"
#include "system.h"

using fabric::Fd;
using fabric::monotonic_ns;
using fabric::random64;

namespace {

struct Write {
    uint8_t bar;  // 0, 2, or kBusReset
    uint8_t size;
    uint32_t offset;
    uint64_t value;
};
constexpr uint8_t kBusReset = 255;
constexpr size_t kMaxQueuedWrites = 16384;
constexpr uint32_t kShadowBytes = 0x50;

}  // namespace

struct snic_device final : snic::Host {
    snic_device(const snic_device_config &c, const snic::Config &nic_config, fabric::PortConfig port_config,
                std::vector<snic_device_ram> pieces, const snic_device_ops &o, void *op)
        : ops(o), opaque(op), ram(std::move(pieces)), spin_ns(uint64_t{c.spin_us ? c.spin_us : 50} * 1000),
          rng(c.seed ? c.seed : random64()), wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), epoll(epoll_create1(EPOLL_CLOEXEC)),
          port(std::move(port_config), [this](int level, const std::string &text) { log(level, text.c_str()); }),
          nic(*this, port, nic_config), irq([this](bool level) { ops.line(opaque, level); }) {
        for (int fd : {wake.get(), port.wait_fd()}) {
            epoll_event ev = {};
            ev.events = EPOLLIN;
            epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &ev);
        }
        refresh_shadow();
        thread = std::thread([this] { run(); });
        if (c.realtime) {
            // An engine works in short bursts and sleeps between them, like the hardware it stands for; behind processors that
            // poll it would otherwise wait for whole time slices. Without the right to it, things work, slower.
            sched_param param = {};
            param.sched_priority = 1;
            pthread_setschedparam(thread.native_handle(), SCHED_RR, &param);
        }
    }

    ~snic_device() override {
        stop = true;
        ring_wake();
        thread.join();
    }

    // --- any thread ---
    void queue(const Write &w) {
        {
            std::lock_guard lock(mutex);
            bool again = !writes.empty() && w.bar == 2 && writes.back().bar == 2 && writes.back().offset == w.offset &&
                         writes.back().value == w.value;
            if (again) return;
            if (writes.size() >= kMaxQueuedWrites) {
                // A flood of doorbells: none of them matters by itself, the engine will look at every queue.
                lost_writes = true;
                if (w.bar == 2) return;
                if (writes.size() >= 2 * kMaxQueuedWrites) return;
            }
            writes.push_back(w);
        }
        pending_writes.store(true, std::memory_order_seq_cst);
        if (asleep.load(std::memory_order_seq_cst)) ring_wake();
    }
    void ring_wake() {
        fabric::wake(wake);
    }

    // --- engine thread ---
    void run();
    void leave_peers();
    bool apply_writes();
    void refresh_shadow() {
        for (uint32_t offset = 0; offset < kShadowBytes; offset += 4)
            shadow[offset / 4].store(static_cast<uint32_t>(nic.read_register(offset, 4)), std::memory_order_release);
    }
    void enter() const {
        if (ops.enter) ops.enter(opaque);
    }
    void leave() const {
        if (ops.leave) ops.leave(opaque);
    }

    // snic::Host
    std::byte *map(uint64_t addr, size_t &len, bool write) override {
        return static_cast<std::byte *>(ops.map(opaque, addr, &len, write));
    }
    snic::RamRef ram_ref(const std::byte *p, size_t len) override {
        for (size_t i = 0; i < ram.size(); i++) {
            auto *base = static_cast<std::byte *>(ram[i].host);
            if (p < base || static_cast<uint64_t>(p - base) >= ram[i].size) continue;
            uint64_t offset = static_cast<uint64_t>(p - base);
            return {len <= ram[i].size - offset, static_cast<uint16_t>(i), offset};
        }
        return {};
    }
    uint64_t now_ns() override { return monotonic_ns(); }
    uint32_t random() override { return static_cast<uint32_t>(rng()); }
    void interrupt(unsigned vector) override {
        if (messages.load(std::memory_order_relaxed))
            ops.message(opaque, vector);
        else
            irq.raise(vector);
    }
    void log(int level, const char *text) override {
        if (ops.log) ops.log(opaque, level, text);
    }

    snic_device_ops ops;
    void *opaque;
    std::vector<snic_device_ram> ram;  // shared pieces, in the order of HELLO
    std::vector<Fd> ram_fds;
    uint64_t spin_ns;
    std::mt19937_64 rng;
    Fd wake, epoll;
    fabric::Port port;
    snic::Nic nic;
    fabric::IrqUnit irq;
    std::array<std::atomic<uint32_t>, kShadowBytes / 4> shadow{};
    std::atomic<bool> messages{false}, stop{false}, asleep{false}, pending_writes{false}, resetting{false}, want_json{false};

    std::mutex mutex;  // guards what follows
    std::vector<Write> writes;
    bool lost_writes = false;
    std::string json;
    uint64_t json_number = 0;
    std::condition_variable json_ready;

    std::thread thread;
};

bool snic_device::apply_writes() {
    if (!pending_writes.exchange(false)) return false;
    std::vector<Write> batch;
    bool lost;
    {
        std::lock_guard lock(mutex);
        batch.swap(writes);
        lost = std::exchange(lost_writes, false);
    }
    bool registers = false;
    for (const Write &w : batch) {
        if (w.bar == kBusReset) {
            nic.reset();
            refresh_shadow();  // first: the reset may not be over, which STATUS tells then
            resetting = false;
            registers = true;
        } else if (w.bar == SNIC_BAR_REGISTERS) {
            nic.write_register(w.offset, w.value, w.size);
            if (w.offset == SNIC_REG_CTRL && w.value & SNIC_CTRL_RESET) {
                refresh_shadow();
                resetting = false;
            }
            registers |= w.offset != SNIC_REG_AQ_DOORBELL;
        } else {
            nic.doorbell(w.offset / SNIC_PAGE_SIZE, w.offset % SNIC_PAGE_SIZE, static_cast<uint32_t>(w.value));
        }
    }
    if (lost) nic.rescan();
    if (registers) refresh_shadow();
    return true;
}

void snic_device::run() {
    uint64_t last_busy = now_ns(), next_control = 0, next_counters = 0;
    uint32_t status = 0;
    while (!stop.load(std::memory_order_relaxed)) {
        uint64_t now = now_ns();
        enter();
        bool busy = apply_writes();
        busy |= port.poll(nic, now, 64);
        if (now >= next_control) {
            busy |= port.poll_control(nic, now);
            next_control = now + 5'000'000;
        }
        if (now >= next_counters) {
            port.send_counters(nic.fabric_totals());
            next_counters = now + 1'000'000'000;
        }
        busy |= nic.step(64);
        if (want_json.load(std::memory_order_relaxed)) {
            std::lock_guard lock(mutex);
            want_json = false;
            json = nic.state_json();
            json_number++;
            json_ready.notify_all();
        }
        leave();
        auto fresh = static_cast<uint32_t>(nic.read_register(SNIC_REG_STATUS, 4));
        if (fresh != status) {
            status = fresh;
            refresh_shadow();
        }
        if (busy) {
            last_busy = now;
            continue;
        }
        if (now - last_busy < spin_ns) {
            sched_yield();
            continue;
        }
        // Sleep: first everybody who could have work for us is asked to wake us, then all is looked at once more.
        asleep.store(true, std::memory_order_seq_cst);
        enter();
        bool idle = nic.prepare_sleep();
        leave();
        if (idle && port.prepare_sleep() && !pending_writes.load(std::memory_order_seq_cst) && !stop && !want_json) {
            uint64_t due = std::min({nic.deadline(), port.deadline(), next_counters});
            now = now_ns();
            uint64_t ns = due <= now ? 0 : std::min<uint64_t>(due - now, 1'000'000'000);
            timespec timeout = {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
            epoll_event events[4];
            epoll_pwait2(epoll.get(), events, 4, &timeout, nullptr);
            next_control = 0;
        }
        asleep.store(false, std::memory_order_seq_cst);
        uint64_t n;
        [[maybe_unused]] ssize_t r = read(wake.get(), &n, sizeof n);
        port.woken();
        last_busy = now_ns();
    }
    leave_peers();
}

// Before the owner gives the RAM away: connections end, and peers that copy to or from it have stopped (or stay silent, about a second).
void snic_device::leave_peers() {
    enter();
    nic.reset();
    leave();
    for (uint64_t end = now_ns() + 1'500'000'000; nic.read_register(SNIC_REG_STATUS, 4) & SNIC_STATUS_RESETTING && now_ns() < end;) {
        uint64_t now = now_ns();
        enter();
        port.poll(nic, now, 64);
        port.poll_control(nic, now);
        nic.step(64);
        leave();
        sched_yield();
    }
}

// --- C interface -------------------------------------------------------------------------------------------------------------

namespace {

bool refuse(char *err, size_t errlen, const std::string &text) {
    if (err && errlen) {
        size_t n = std::min(errlen - 1, text.size());
        std::memcpy(err, text.data(), n);
        err[n] = 0;
    }
    return false;
}

// Checks the owner's configuration and fills in the defaults.
bool digest(const snic_device_config &c, snic::Config &out, char *err, size_t errlen) {
    in_addr addr;
    std::string ip = c.ip ? c.ip : "";
    if (inet_pton(AF_INET, ip.c_str(), &addr) != 1 || addr.s_addr == 0)
        return refuse(err, errlen, "ip '" + ip + "' is not an IPv4 address like 10.0.0.1");
    out.ip = ntohl(addr.s_addr);
    out.prefix = c.prefix ? c.prefix : 24;
    if (out.prefix > 31) return refuse(err, errlen, "prefix " + std::to_string(c.prefix) + " is not in 1..31");
    out.guid = c.guid ? c.guid : 0x5A4E000000000000u | out.ip;
    auto set = [&](const char *name, uint32_t value, uint32_t least, uint32_t most, uint32_t &target) {
        if (value == 0) return true;
        if (value < least || value > most)
            return refuse(err, errlen, std::string(name) + ' ' + std::to_string(value) + " is not in " + std::to_string(least) + ".." + std::to_string(most));
        target = value;
        return true;
    };
    out.revoke_by_deregister = c.revoke_by_deregister;
    out.link_rate = uint64_t{c.link_rate_mbit} * 125'000;
    out.delay = c.delay_ns;
    out.jitter = c.jitter_ns;
    out.op_cost = c.op_cost_ns;
    out.fail_command = c.fail_command;
    if (c.fail_status > SNIC_ERR_RESOURCES && c.fail_status != SNIC_DEVICE_NO_ANSWER)
        return refuse(err, errlen, "fail-status " + std::to_string(c.fail_status) + " is not in 1..10, nor 65535 for no answer");
    if (c.fail_status) out.fail_status = static_cast<uint16_t>(c.fail_status);
    for (auto [name, value] : {std::pair{"delay-ns", c.delay_ns}, {"jitter-ns", c.jitter_ns}, {"op-cost-ns", c.op_cost_ns}})
        if (value > 10'000'000'000) return refuse(err, errlen, std::string(name) + ' ' + std::to_string(value) + " is not in 0..10000000000");
    return set("vectors", c.vectors, 1, SNIC_DEVICE_MAX_VECTORS, out.vectors) &&
           set("doorbell-pages", c.doorbell_pages, 2, 4096, out.doorbell_pages) && set("max-qp", c.max_qp, 1, 65536, out.max_qp) &&
           set("max-cq", c.max_cq, 1, 65536, out.max_cq) && set("max-mr", c.max_mr, 1, 1u << 24, out.max_mr) &&
           set("max-pd", c.max_pd, 1, 65536, out.max_pd) &&
           set("max-pages", c.max_pages, 1024, 1u << 28, out.max_pages);
}

}  // namespace

snic_device *snic_device_create(const snic_device_config *config, const snic_device_ram *ram, size_t nram,
                                const snic_device_ops *ops, void *opaque, char *err, size_t errlen) {
    snic::Config nic_config;
    if (!ops || !ops->map || !ops->message || !ops->line) {
        refuse(err, errlen, "map, message and line callbacks are required");
        return nullptr;
    }
    if (!digest(*config, nic_config, err, errlen)) return nullptr;
    fabric::PortConfig port;
    port.path = config->fabric ? config->fabric : "";
    port.name = config->name && *config->name ? config->name : std::string("nic-") + config->ip;
    if (port.name.size() > 31) {
        refuse(err, errlen, "name '" + port.name + "' has more than 31 characters");
        return nullptr;
    }
    port.guid = nic_config.guid;
    port.instance = random64();
    port.ip = nic_config.ip;
    port.prefix = nic_config.prefix;

    // Only RAM that peers may map safely is offered to them: shared, and sealed so that it cannot shrink under them.
    std::vector<snic_device_ram> pieces;
    std::vector<Fd> fds;
    std::string unshared;
    for (size_t i = 0; i < nram && pieces.size() < FABRIC_MAX_RAM && !config->no_direct; i++) {
        if (ram[i].fd < 0) {
            unshared = "guest RAM is not shared (use memory-backend-memfd with share=on; in libvirt: <memoryBacking><source "
                       "type='memfd'/><access mode='shared'/></memoryBacking>)";
            continue;
        }
        int seals = fcntl(ram[i].fd, F_GET_SEALS);
        if (seals >= 0 && !(seals & F_SEAL_SHRINK)) {
            fcntl(ram[i].fd, F_ADD_SEALS, F_SEAL_SHRINK);
            seals = fcntl(ram[i].fd, F_GET_SEALS);
        }
        if (seals < 0 || !(seals & F_SEAL_SHRINK)) {
            unshared = "guest RAM is not sealed against shrinking (use memory-backend-memfd with seal=on)";
            continue;
        }
        pieces.push_back(ram[i]);
        fds.emplace_back(fcntl(ram[i].fd, F_DUPFD_CLOEXEC, 0));
        port.ram.push_back({fds.back().get(), ram[i].size, ram[i].fd_offset});
    }
    if (pieces.empty() && !unshared.empty() && ops->log)
        ops->log(opaque, 1, (unshared + ": data is copied through the fabric's rings").c_str());
    auto *dev = new snic_device(*config, nic_config, std::move(port), std::move(pieces), *ops, opaque);
    dev->ram_fds = std::move(fds);
    return dev;
}

void snic_device_destroy(snic_device *dev) { delete dev; }

uint64_t snic_device_register_bar_size(const snic_device *) { return SNIC_REGISTER_BAR_SIZE; }

uint64_t snic_device_doorbell_bar_size(const snic_device *dev) {
    uint64_t bytes = SNIC_PAGE_SIZE;  // a BAR's size is a power of two
    while (bytes < uint64_t{dev->nic.config().doorbell_pages} * SNIC_PAGE_SIZE) bytes *= 2;
    return bytes;
}

uint64_t snic_device_mmio_read(snic_device *dev, unsigned bar, uint64_t offset, unsigned size) {
    if (bar != SNIC_BAR_REGISTERS || offset >= kShadowBytes || (size != 4 && size != 8) || offset % size) return 0;
    if (offset == SNIC_REG_IRQ_CAUSE && size == 4) return dev->irq.cause();
    if (offset == SNIC_REG_IRQ_MASK && size == 4) return dev->irq.mask();
    uint64_t value = dev->shadow[offset / 4].load(std::memory_order_acquire);
    if (size == 8) value |= uint64_t{dev->shadow[offset / 4 + 1].load(std::memory_order_acquire)} << 32;
    if (offset == SNIC_REG_STATUS && dev->resetting) value = (value | SNIC_STATUS_RESETTING) & ~uint64_t{SNIC_STATUS_READY};
    return value;
}

void snic_device_mmio_write(snic_device *dev, unsigned bar, uint64_t offset, uint64_t value, unsigned size) {
    if (bar == SNIC_BAR_REGISTERS) {
        if (offset >= kShadowBytes || (size != 4 && size != 8) || offset % size) return;
        if (offset == SNIC_REG_IRQ_CAUSE && size == 4) return dev->irq.acknowledge(static_cast<uint32_t>(value));
        if (offset == SNIC_REG_IRQ_MASK && size == 4) return dev->irq.set_mask(static_cast<uint32_t>(value));
        if (offset == SNIC_REG_CTRL && value & SNIC_CTRL_RESET) {
            dev->resetting = true;
            dev->irq.reset();
        }
    } else if (bar == SNIC_BAR_DOORBELLS) {
        uint64_t in_page = offset % SNIC_PAGE_SIZE;
        if (size != 4 || (in_page != SNIC_DB_SQ && in_page != SNIC_DB_CQ_ARM)) return;
        if (offset / SNIC_PAGE_SIZE >= dev->nic.config().doorbell_pages) return;
    } else {
        return;
    }
    dev->queue({static_cast<uint8_t>(bar), static_cast<uint8_t>(size), static_cast<uint32_t>(offset), value});
}

void snic_device_use_messages(snic_device *dev, bool messages) { dev->messages = messages; }

void snic_device_reset(snic_device *dev) {
    dev->resetting = true;
    dev->irq.reset();
    dev->queue({kBusReset, 0, 0, 0});
}

size_t snic_device_state_json(snic_device *dev, char *buf, size_t len) {
    std::unique_lock lock(dev->mutex);
    uint64_t before = dev->json_number;
    dev->want_json = true;
    lock.unlock();
    dev->ring_wake();
    lock.lock();
    dev->json_ready.wait_for(lock, std::chrono::seconds(1), [&] { return dev->json_number != before; });
    if (len && buf) {
        size_t n = std::min(len - 1, dev->json.size());
        std::memcpy(buf, dev->json.data(), n);
        buf[n] = 0;
    }
    return dev->json.size();
}
