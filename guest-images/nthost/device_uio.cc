// SPDX-License-Identifier: GPL-2.0-or-later
//
// A real PCI function without an IOMMU before it: uio_pci_generic for the interrupt line, BARs and configuration space
// through /sys, DMA to physical addresses. Quicker than vfio, and nothing watches where the function writes.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "cpu.h"
#include "device.h"
#include "pci_sysfs.h"
#include "process.h"

namespace nth {

namespace {

constexpr uint64_t BAR_BASE = 0x380000000000,
                   BAR_STRIDE = 0x1000000000;  // as in device_pci.cc: the driver's names for the BARs
constexpr uint16_t COMMAND_MASTER = 0x0006, COMMAND_INTX_OFF = 0x0400;

class UioDevice final : public Device {
  public:
    ~UioDevice() override {
        stop_ = true;
        uint64_t one = 1;
        if (wake_.get() >= 0 && write(wake_.get(), &one, sizeof one) < 0) note("eventfd: %s", strerror(errno));
        if (thread_.joinable()) thread_.join();
        if (config_.get() >= 0) set_command(COMMAND_INTX_OFF, COMMAND_MASTER);
    }

    bool create(const std::string &address, std::string *error) {
        if (!give_to_driver(address, "uio_pci_generic", error)) return false;
        std::string sys = "/sys/bus/pci/devices/" + address;
        auto fail = [&](const std::string &what) {
            *error = "--device pci=" + address + ": " + what + ": " + strerror(errno);
            return false;
        };
        config_.reset(open((sys + "/config").c_str(), O_RDWR | O_CLOEXEC));
        if (config_.get() < 0) return fail(sys + "/config");
        std::string uio = first_entry(sys + "/uio");
        uio_.reset(open(("/dev/" + uio).c_str(), O_RDWR | O_CLOEXEC));
        if (uio.empty() || uio_.get() < 0) return fail("/dev/" + uio);
        FILE *f = fopen((sys + "/resource").c_str(), "re");
        if (f == nullptr) return fail(sys + "/resource");
        unsigned long long first, last, flags;
        for (unsigned i = 0; i < 6 && fscanf(f, "%llx %llx %llx", &first, &last, &flags) == 3; i++) {
            if ((flags & 0x200) == 0 || last <= first) continue;  // not memory
            resource_[i].reset(open((sys + "/resource" + std::to_string(i)).c_str(), O_RDWR | O_CLOEXEC));
            if (resource_[i].get() < 0) continue;  // the upper half of a 64-bit BAR
            bars_.push_back({i, BAR_BASE + i * BAR_STRIDE, last - first + 1});
        }
        fclose(f);
        if (bars_.empty()) return fail("no memory BAR");
        wake_.reset(eventfd(0, EFD_CLOEXEC));
        set_command(COMMAND_MASTER | COMMAND_INTX_OFF, 0);
        thread_ = std::thread([this] { interrupt_thread(); });
        return true;
    }

    bool fill_mapping(uint64_t address, uint64_t bus, uint64_t size) override {
        const Bar *b = bar_of(bus);
        if (b == nullptr || bus - b->bus + size > page_up(b->size)) return false;
        void *p = mmap(reinterpret_cast<void *>(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       resource_[b->index].get(), static_cast<off_t>(bus - b->bus));
        if (p == MAP_FAILED) note("cannot map BAR %u: %s", b->index, strerror(errno));
        return p != MAP_FAILED;
    }
    void drop_mapping(uint64_t, uint64_t) override {}

    void use_messages(unsigned) override { host_bug("message interrupts without an IOMMU"); }
    void use_line() override {
        line_ = true;
        set_command(0, COMMAND_INTX_OFF);
    }
    void stop_interrupts() override {
        line_ = false;
        set_command(COMMAND_INTX_OFF, 0);
    }

    void read_config(uint32_t offset, void *to, uint32_t length) override {
        memset(to, 0xff, length);
        if (pread(config_.get(), to, length, offset) < 0) memset(to, 0xff, length);
    }
    void write_config(uint32_t offset, const void *from, uint32_t length) override {
        if (pwrite(config_.get(), from, length, offset) < 0)
            note("configuration write at 0x%x: %s", offset, strerror(errno));
    }

  private:
    static std::string first_entry(const std::string &path) {
        std::string name;
        if (DIR *d = opendir(path.c_str())) {
            while (dirent *e = readdir(d))
                if (e->d_name[0] != '.') name = e->d_name;
            closedir(d);
        }
        return name;
    }

    void set_command(uint16_t on, uint16_t off) {
        Locked l(command_lock_);
        uint16_t command = 0;
        read_config(4, &command, 2);
        command = static_cast<uint16_t>((command | on) & ~off);
        write_config(4, &command, 2);
    }

    // The kernel closes the line before read() returns; open again, it reports at once if the function still asserts
    // it.
    void interrupt_thread() {
        adopt_system_thread("nt-irq");
        pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {uio_.get(), POLLIN, 0}};
        while (!stop_) {
            if (poll(fds, 2, -1) < 0 && errno != EINTR) host_bug("poll: %s", strerror(errno));
            if ((fds[1].revents & POLLIN) == 0) continue;
            uint32_t count;
            if (read(uio_.get(), &count, sizeof count) != sizeof count) continue;
            run_line_interrupt();
            if (line_) set_command(0, COMMAND_INTX_OFF);
        }
    }

    Fd config_, uio_, wake_, resource_[6];
    FutexLock command_lock_;  // guards the read-modify-write of the command register
    std::atomic<bool> stop_{false}, line_{false};
    std::thread thread_;
};

}  // namespace

std::unique_ptr<Device> make_uio_device(const std::string &address, std::string *error) {
    auto d = std::make_unique<UioDevice>();
    if (!d->create(address, error)) return nullptr;
    return d;
}

}  // namespace nth
