// SPDX-License-Identifier: GPL-2.0-or-later
//
// A real PCI function, driven from user space by vfio-pci behind an IOMMU.
//
// The whole page pool is mapped once into the IOMMU at its bus addresses, so "physical" addresses of the driver are I/O
// virtual addresses of the function; DMA to anything else is blocked by the IOMMU. BARs are mmapped; MSI-X messages and
// the line arrive on eventfds, whose thread runs the service routines and their DPCs itself.
#include <fcntl.h>
#include <linux/vfio.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "cpu.h"
#include "device.h"
#include "options.h"
#include "pci_sysfs.h"
#include "process.h"

namespace nth {

namespace {

// The driver only passes these addresses to MmMapIoSpace; they are kept apart from the pool's, whatever the firmware
// chose.
constexpr uint64_t BAR_BASE = 0x380000000000, BAR_STRIDE = 0x1000000000;
constexpr unsigned MAX_MESSAGES = 32;

class PciDevice final : public Device, private DmaListener {
  public:
    ~PciDevice() override {
        if (locked_only_) page_pool().set_dma_listener(nullptr);
        stop_ = true;
        if (wake_.get() >= 0) {
            uint64_t one = 1;
            if (write(wake_.get(), &one, sizeof one) < 0) note("eventfd: %s", strerror(errno));
        }
        if (thread_.joinable()) thread_.join();
        if (device_.get() >= 0) {
            set_bus_master(false);
            ioctl(device_.get(), VFIO_DEVICE_RESET);
        }
    }

    bool create(const std::string &address, bool messages, bool locked_only, std::string *error) {
        locked_only_ = locked_only;
        return bind(address, error) && open_group(address, error) && map_pool(error) && read_regions(error) &&
               start(messages, error);
    }

    bool fill_mapping(uint64_t address, uint64_t bus, uint64_t size) override {
        const Bar *b = bar_of(bus);
        if (b == nullptr || bus - b->bus + size > page_up(b->size)) return false;
        void *p = mmap(reinterpret_cast<void *>(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       device_.get(), static_cast<off_t>(region_offset_[b->index] + (bus - b->bus)));
        if (p == MAP_FAILED) note("cannot map BAR %u: %s", b->index, strerror(errno));
        return p != MAP_FAILED;
    }
    void drop_mapping(uint64_t, uint64_t) override {}  // goes with the region

    void use_messages(unsigned count) override { trigger(VFIO_PCI_MSIX_IRQ_INDEX, std::min(count, vectors_)); }
    void use_line() override { trigger(VFIO_PCI_INTX_IRQ_INDEX, 1); }
    void stop_interrupts() override {
        if (active_index_ < 0) return;
        vfio_irq_set off{};
        off.argsz = sizeof off;
        off.flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
        off.index = static_cast<uint32_t>(active_index_.load());
        ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, &off);
        active_index_ = -1;
    }

    void read_config(uint32_t offset, void *to, uint32_t length) override {
        memset(to, 0xff, length);
        if (pread(device_.get(), to, length, static_cast<off_t>(config_offset_ + offset)) < 0) memset(to, 0xff, length);
    }
    void write_config(uint32_t offset, const void *from, uint32_t length) override {
        if (pwrite(device_.get(), from, length, static_cast<off_t>(config_offset_ + offset)) < 0)
            note("configuration write at 0x%x: %s", offset, strerror(errno));
    }

  private:
    bool fail(std::string *error, const std::string &what) {
        *error = "--device pci: " + what + ": " + strerror(errno);
        return false;
    }

    bool bind(const std::string &address, std::string *error) {
        if (!give_to_driver(address, "vfio-pci", error)) return false;
        group_ = link_name("/sys/bus/pci/devices/" + address + "/iommu_group");
        if (!group_.empty()) return true;
        *error =
            "--device pci=" + address + ": the function is in no IOMMU group (boot with an IOMMU and intel_iommu=on)";
        return false;
    }

    bool open_group(const std::string &address, std::string *error) {
        container_.reset(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC));
        if (container_.get() < 0) return fail(error, "/dev/vfio/vfio");
        group_fd_.reset(open(("/dev/vfio/" + group_).c_str(), O_RDWR | O_CLOEXEC));
        if (group_fd_.get() < 0) return fail(error, "/dev/vfio/" + group_);
        vfio_group_status status{};
        status.argsz = sizeof status;
        if (ioctl(group_fd_.get(), VFIO_GROUP_GET_STATUS, &status) != 0) return fail(error, "VFIO_GROUP_GET_STATUS");
        if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0) {
            *error = "--device pci: IOMMU group " + group_ +
                     " is not viable: other functions in it have drivers of the kernel's";
            return false;
        }
        int container = container_.get();
        if (ioctl(group_fd_.get(), VFIO_GROUP_SET_CONTAINER, &container) != 0)
            return fail(error, "VFIO_GROUP_SET_CONTAINER");
        if (ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0 &&
            ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1_IOMMU) != 0)
            return fail(error, "VFIO_SET_IOMMU (QEMU's intel-iommu needs intremap=on)");
        device_.reset(ioctl(group_fd_.get(), VFIO_GROUP_GET_DEVICE_FD, address.c_str()));
        if (device_.get() < 0) return fail(error, "VFIO_GROUP_GET_DEVICE_FD");
        ioctl(device_.get(), VFIO_DEVICE_RESET);
        return true;
    }

    // One entry for the pool; or one for each page that the driver has locked or that is the kernel's, so that the
    // IOMMU stops everything else.
    bool map_pool(std::string *error) {
        if (locked_only_) {
            page_pool().set_dma_listener(this);
            return true;
        }
        vfio_iommu_type1_dma_map m{};
        m.argsz = sizeof m;
        m.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
        m.vaddr = reinterpret_cast<uint64_t>(page_pool().linear());
        m.iova = PagePool::bus_base;
        m.size = page_pool().bytes();
        if (ioctl(container_.get(), VFIO_IOMMU_MAP_DMA, &m) != 0)
            return fail(error, "VFIO_IOMMU_MAP_DMA of " + std::to_string(m.size >> 20) +
                                   " MiB (more than there is to pin? see --pool)");
        return true;
    }

    void page_opened(PageIndex page) override {
        vfio_iommu_type1_dma_map m{};
        m.argsz = sizeof m;
        m.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
        m.vaddr = reinterpret_cast<uint64_t>(page_pool().address(page));
        m.iova = page_pool().bus(page);
        m.size = 4096;
        if (ioctl(container_.get(), VFIO_IOMMU_MAP_DMA, &m) != 0)
            host_bug("VFIO_IOMMU_MAP_DMA of a page: %s", strerror(errno));
    }
    void page_closed(PageIndex page) override {
        vfio_iommu_type1_dma_unmap m{};
        m.argsz = sizeof m;
        m.iova = page_pool().bus(page);
        m.size = 4096;
        if (ioctl(container_.get(), VFIO_IOMMU_UNMAP_DMA, &m) != 0)
            host_bug("VFIO_IOMMU_UNMAP_DMA of a page: %s", strerror(errno));
    }

    bool read_regions(std::string *error) {
        auto region = [&](unsigned index, vfio_region_info *r) {
            *r = vfio_region_info{};
            r->argsz = sizeof *r;
            r->index = index;
            return ioctl(device_.get(), VFIO_DEVICE_GET_REGION_INFO, r) == 0;
        };
        vfio_region_info r;
        if (!region(VFIO_PCI_CONFIG_REGION_INDEX, &r)) return fail(error, "configuration space");
        config_offset_ = r.offset;
        for (unsigned i = 0; i < 6; i++) {
            if (!region(i, &r) || r.size == 0) continue;
            uint32_t bar = 0;
            read_config(0x10 + i * 4, &bar, 4);
            if ((bar & 1) != 0) continue;  // I/O ports
            if ((r.flags & VFIO_REGION_INFO_FLAG_MMAP) == 0) {
                // Too small for a page of its own, or with the MSI-X table: not for the driver.
                continue;
            }
            region_offset_[i] = r.offset;
            bars_.push_back({i, BAR_BASE + i * BAR_STRIDE, r.size});
        }
        if (bars_.empty()) {
            *error = "--device pci: the function has no memory BAR that can be mapped";
            return false;
        }
        return true;
    }

    unsigned messages_offered() {
        vfio_irq_info info{};
        info.argsz = sizeof info;
        info.index = VFIO_PCI_MSIX_IRQ_INDEX;
        if (ioctl(device_.get(), VFIO_DEVICE_GET_IRQ_INFO, &info) != 0) return 0;
        return std::min(info.count, MAX_MESSAGES);
    }

    bool start(bool messages, std::string *error) {
        vectors_ = messages ? messages_offered() : 0;
        wake_.reset(eventfd(0, EFD_CLOEXEC));
        for (unsigned i = 0; i < std::max(vectors_, 1u); i++) {
            events_.push_back(std::make_unique<Fd>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
            if (events_.back()->get() < 0) return fail(error, "eventfd");
        }
        set_bus_master(true);
        thread_ = std::thread([this] { interrupt_thread(); });
        return true;
    }

    void set_bus_master(bool on) {
        uint16_t command = 0;
        read_config(4, &command, 2);
        command = static_cast<uint16_t>(on ? command | 6 : command & ~4);
        write_config(4, &command, 2);
    }

    void trigger(unsigned index, unsigned count) {
        stop_interrupts();
        std::vector<uint8_t> buffer(sizeof(vfio_irq_set) + count * sizeof(int32_t));
        auto *set = reinterpret_cast<vfio_irq_set *>(buffer.data());
        set->argsz = static_cast<uint32_t>(buffer.size());
        set->flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        set->index = index;
        set->start = 0;
        set->count = count;
        for (unsigned i = 0; i < count; i++) {
            int32_t fd = events_[i]->get();
            memcpy(set->data + i * sizeof fd, &fd, sizeof fd);
        }
        active_index_ = static_cast<int>(index);
        if (ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, set) != 0) host_bug("VFIO_DEVICE_SET_IRQS: %s", strerror(errno));
    }

    void interrupt_thread() {
        adopt_system_thread("nt-irq");
        std::vector<pollfd> poll_fds;
        poll_fds.push_back({wake_.get(), POLLIN, 0});
        for (auto &e : events_) poll_fds.push_back({e->get(), POLLIN, 0});
        while (!stop_) {
            if (poll(poll_fds.data(), poll_fds.size(), -1) < 0 && errno != EINTR) host_bug("poll: %s", strerror(errno));
            for (size_t i = 1; i < poll_fds.size(); i++) {
                if ((poll_fds[i].revents & POLLIN) == 0) continue;
                uint64_t count;
                if (read(poll_fds[i].fd, &count, sizeof count) != sizeof count) continue;
                if (active_index_ == VFIO_PCI_INTX_IRQ_INDEX) serve_line();
                else run_message_interrupt(static_cast<unsigned>(i - 1));
            }
        }
    }

    // vfio masked the line; opened again, it fires at once if the function still asserts it.
    void serve_line() {
        run_line_interrupt();
        vfio_irq_set unmask{};
        unmask.argsz = sizeof unmask;
        unmask.flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_UNMASK;
        unmask.index = VFIO_PCI_INTX_IRQ_INDEX;
        unmask.count = 1;
        ioctl(device_.get(), VFIO_DEVICE_SET_IRQS, &unmask);
    }

    std::string group_;
    Fd container_, group_fd_, device_, wake_;
    std::vector<std::unique_ptr<Fd>> events_;
    uint64_t region_offset_[6] = {}, config_offset_ = 0;
    std::atomic<int> active_index_{-1};
    std::atomic<bool> stop_{false};
    bool locked_only_ = false;
    std::thread thread_;
};

}  // namespace

namespace {

struct PciOptions {
    std::string address;
    unsigned iommu;  // 0 auto, 1 on, 2 off
    bool messages;
    bool locked_only;  // dma=locked
};

bool parse_options(const std::string &text, PciOptions *out, std::string *error) {
    size_t comma = text.find(',');
    out->address = text.substr(0, comma);
    DeviceOptions o(comma == std::string::npos ? "" : text.substr(comma + 1));
    out->iommu = o.choice("iommu", {"auto", "on", "off"});
    out->messages = o.choice("msi", {"on", "off"}) == 0;
    out->locked_only = o.choice("dma", {"all", "locked"}) == 1;
    *error = o.error();
    return error->empty();
}

}  // namespace

bool pci_needs_physical_memory(const std::string &text, bool *physical, std::string *error) {
    PciOptions o;
    if (!parse_options(text, &o, error)) return false;
    bool group = !link_name("/sys/bus/pci/devices/" + o.address + "/iommu_group").empty();
    bool there = access(("/sys/bus/pci/devices/" + o.address).c_str(), F_OK) == 0;
    *physical = there && (o.iommu == 2 || (o.iommu == 0 && !group));
    if (there && group && o.iommu == 2) {
        *error = "--device pci=" + o.address +
                 ": iommu=off, but the function is behind an IOMMU (boot without one, or use iommu=on)";
        return false;
    }
    return true;
}

void allow_huge_shared_memory() {
    write_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "advise");
}

std::unique_ptr<Device> make_pci_device(const std::string &text, std::string *error) {
    PciOptions o;
    bool physical = false;
    if (!parse_options(text, &o, error) || !pci_needs_physical_memory(text, &physical, error)) return nullptr;
    if (physical && o.locked_only) {
        *error = "--device pci: dma=locked needs an IOMMU before the function";
        return nullptr;
    }
    if (physical) {
        g_message_interrupts = false;  // uio_pci_generic has the line only
        return make_uio_device(o.address, error);
    }
    g_message_interrupts = o.messages;
    auto d = std::make_unique<PciDevice>();
    if (!d->create(o.address, g_message_interrupts, o.locked_only, error)) return nullptr;
    return d;
}

}  // namespace nth
