// SPDX-License-Identifier: GPL-2.0-or-later
//
// The NIC model in this process: BARs are pages that trap, RAM is the page pool, interrupts are calls.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>

#include "cpu.h"
#include "device.h"
#include "mmio.h"
#include "options.h"
#include "process.h"
#include "sanlab/snic_hw.h"
#include "snic_device.h"
#include "verifier.h"

namespace nth {

namespace {

// Where a BIOS might have put the BARs: above any page pool.
constexpr uint64_t BAR_BASE = 0x380000000000;

class InprocDevice final : public Device {
  public:
    explicit InprocDevice(bool messages) { vectors_ = messages ? 4 : 0; }
    ~InprocDevice() override {
        if (dev_ != nullptr) snic_device_destroy(dev_);
    }

    bool create(snic_device_config config, std::string *error) {
        if (vectors_ != 0 && config.vectors != 0) vectors_ = config.vectors;
        config.vectors = vectors_;
        snic_device_ram ram{page_pool().linear(), page_pool().bytes(), page_pool().fd(), 0};
        static const snic_device_ops ops = {map, nullptr, nullptr, message, line, log};
        char text[256] = "";
        dev_ = snic_device_create(&config, &ram, 1, &ops, this, text, sizeof text);
        if (dev_ == nullptr) {
            *error = text;
            return false;
        }
        bars_ = {{0, BAR_BASE, snic_device_register_bar_size(dev_)},
                 {2, BAR_BASE + 0x1000000000, snic_device_doorbell_bar_size(dev_)}};
        for (const Bar &b : bars_) ports_[b.index] = std::make_unique<Port>(*this, b.index);
        fill_config();
        return true;
    }

    bool fill_mapping(uint64_t address, uint64_t bus, uint64_t size) override {
        const Bar *b = bar_of(bus);
        if (b == nullptr || bus - b->bus + size > page_up(b->size)) return false;
        add_mmio_range(address, size, ports_[b->index].get(), bus - b->bus);
        return true;
    }
    void drop_mapping(uint64_t address, uint64_t) override { remove_mmio_range(address); }

    void use_messages(unsigned) override {
        messages_ = true;
        if (Use use{*this}; use) snic_device_use_messages(dev_, true);
    }
    void use_line() override {
        messages_ = false;
        stop_interrupts();
    }
    void stop_interrupts() override {
        if (Use use{*this}; use) snic_device_use_messages(dev_, false);
    }
    bool unplug() override {
        unplugged_ = true;
        while (users_ != 0) usleep_host(100);
        snic_device_destroy(dev_);
        dev_ = nullptr;
        set_interrupt_line(false);
        return true;
    }

    void read_config(uint32_t offset, void *to, uint32_t length) override {
        memset(to, 0xff, length);
        if (offset < sizeof config_) memcpy(to, config_ + offset, std::min<uint32_t>(length, sizeof config_ - offset));
    }
    void write_config(uint32_t offset, const void *from, uint32_t length) override {
        // Only the command register can be written.
        for (uint32_t i = 0; i < length; i++)
            if (offset + i == 4 || offset + i == 5) config_[offset + i] = static_cast<const uint8_t *>(from)[i];
    }

  private:
    // Whoever calls the model: true while it is in its slot, and it stays there for so long.
    struct Use {
        explicit Use(InprocDevice &d) : device(d) { device.users_++; }
        ~Use() { device.users_--; }
        explicit operator bool() const { return !device.unplugged_; }
        InprocDevice &device;
    };
    struct Port final : MmioPort {
        Port(InprocDevice &d, unsigned b) : device(d), bar(b) {}
        uint64_t read(uint64_t offset, unsigned size) override {
            Use use{device};
            return use ? snic_device_mmio_read(device.dev_, bar, offset, size) : ~uint64_t{0};
        }
        void write(uint64_t offset, uint64_t value, unsigned size) override {
            if (Use use{device}; use) snic_device_mmio_write(device.dev_, bar, offset, value, size);
        }
        InprocDevice &device;
        unsigned bar;
    };

    static void *map(void *, uint64_t addr, size_t *len, bool write) {
        uint64_t offset = addr - PagePool::bus_base;
        if (addr < PagePool::bus_base || offset >= page_pool().bytes()) return nullptr;
        *len = std::min<uint64_t>(*len, page_pool().bytes() - offset);
        if (g_verifier)
            for (uint64_t page = offset >> 12; page <= (offset + *len - 1) >> 12; page++)
                if (!page_pool().device_may_touch(static_cast<PageIndex>(page)))
                    bugcheck(0xe6, "DRIVER_VERIFIER_DMA_VIOLATION",
                             "the device %s bus address 0x%llx, in a page that is neither locked nor kernel memory",
                             write ? "writes to" : "reads from", (unsigned long long)PagePool::bus_base + page * 4096);
        return page_pool().linear() + offset;
    }
    static void message(void *, unsigned vector) { post_message_interrupt(vector); }
    static void line(void *, bool level) { set_interrupt_line(level); }
    static void log(void *, int level, const char *text) {
        if (level <= 1) note("snic: %s", text);
    }

    void fill_config() {
        auto put = [&](unsigned at, uint32_t v, unsigned n) { memcpy(config_ + at, &v, n); };
        put(0, 0x5a4e1234, 4);
        put(4, 0x0006, 2);
        put(8, 0x02800001, 4);  // network controller, other
        for (const Bar &b : bars_) {
            put(0x10 + b.index * 4, static_cast<uint32_t>(b.bus) | 0xc, 4);
            put(0x14 + b.index * 4, static_cast<uint32_t>(b.bus >> 32), 4);
        }
        put(0x2c, 0x00011234, 4);
        put(0x3c, 0x010b, 2);  // line 11, INTA
    }

    snic_device *dev_ = nullptr;
    bool messages_ = false;
    std::atomic<bool> unplugged_ = false;
    std::atomic<uint32_t> users_ = 0;
    std::map<unsigned, std::unique_ptr<Port>> ports_;
    uint8_t config_[256] = {};
};

}  // namespace

std::unique_ptr<Device> make_inproc_device(const std::string &text, std::string *error) {
    DeviceOptions o(text);
    snic_device_config c{};
    std::string fabric = o.text("fabric", ""), name = o.text("name", ""), ip = o.text("ip", "10.0.0.1");
    c.fabric = fabric.c_str();
    c.name = name.empty() ? nullptr : name.c_str();
    c.ip = ip.c_str();
    c.prefix = o.number("prefix", 0, 1, 31);
    c.vectors = o.number("vectors", 0, 1, SNIC_DEVICE_MAX_VECTORS);
    c.doorbell_pages = o.number("doorbells", 0, 2, 4096);
    c.max_qp = o.number("max-qp", 0, 1, 1 << 24);
    c.max_cq = o.number("max-cq", 0, 1, 1 << 24);
    c.max_mr = o.number("max-mr", 0, 1, 1 << 24);
    c.max_pd = o.number("max-pd", 0, 1, 1 << 24);
    c.spin_us = o.number("spin", 0, 0, 1000000);
    c.seed = o.number64("seed", 0);
    c.guid = o.number64("guid", 0);
    c.fail_command = o.number("fail-command", 0, 1, UINT32_MAX);
    constexpr uint32_t fail_status[] = {SNIC_ERR_RESOURCES, SNIC_ERR_LIMIT, SNIC_DEVICE_NO_ANSWER};
    c.fail_status = fail_status[o.choice("fail-status", {"resources", "limit", "no-answer"})];
    c.revoke_by_deregister = o.choice("revoke", {"key", "deregister"}) == 1;
    c.no_direct = o.choice("direct", {"on", "off"}) == 1;
    g_message_interrupts = o.choice("msi", {"on", "off"}) == 0;
    *error = o.error();
    if (!error->empty()) return nullptr;
    auto d = std::make_unique<InprocDevice>(g_message_interrupts);
    if (!d->create(c, error)) return nullptr;
    return d;
}

}  // namespace nth
