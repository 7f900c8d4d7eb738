// SPDX-License-Identifier: GPL-2.0-or-later
// device_board.h: a computer around a real snic_device, with its engine thread and its place on a real fabric. RAM is a
// memfd.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "fd.h"
#include "guest.h"
#include "snic_device.h"

namespace sim {

class DeviceBoard : public Board {
  public:
    static constexpr uint64_t kBase = 0x100000;

    // max_qp: 0 for the NIC's default.
    DeviceBoard(const std::string &fabric, const std::string &ip, uint64_t ram_bytes, bool shared = true,
                bool messages = true, uint32_t max_qp = 0)
        : bytes_(ram_bytes), fd_(fabric::make_memfd("board", ram_bytes)) {
        ram_ = static_cast<char *>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
        if (ram_ == MAP_FAILED) throw std::runtime_error("cannot map the board's RAM");
        unsigned a, b, c, d;
        if (std::sscanf(ip.c_str(), "%u.%u.%u.%u", &a, &b, &c, &d) == 4) ip_ = a << 24 | b << 16 | c << 8 | d;
        snic_device_config config = {};
        config.fabric = fabric.c_str();
        config.ip = ip.c_str();
        config.no_direct = !shared;
        config.max_qp = max_qp;
        snic_device_ram piece = {ram_, bytes_, fd_.get(), 0};
        snic_device_ops ops = {};
        ops.map = [](void *self, uint64_t addr, size_t *len, bool) -> void * {
            auto *b = static_cast<DeviceBoard *>(self);
            if (addr < kBase || addr - kBase >= b->bytes_) return nullptr;
            *len = std::min<size_t>(*len, b->bytes_ - (addr - kBase));
            return b->ram_ + (addr - kBase);
        };
        ops.message = [](void *self, unsigned vector) { static_cast<DeviceBoard *>(self)->interrupts[vector % 32]++; };
        ops.line = [](void *self, bool level) {
            auto *b = static_cast<DeviceBoard *>(self);
            b->line_level = level;
            if (level) b->line_rises++;
        };
        char err[256] = "";
        dev_ = snic_device_create(&config, &piece, 1, &ops, this, err, sizeof err);
        if (!dev_) throw std::runtime_error(err);
        snic_device_use_messages(dev_, messages);
    }
    ~DeviceBoard() override {
        if (dev_) snic_device_destroy(dev_);
        munmap(ram_, bytes_);
    }
    // Takes the NIC away, as unplugging it would.
    void destroy_device() {
        snic_device_destroy(dev_);
        dev_ = nullptr;
    }
    snic_device *device() { return dev_; }
    bool link_up() { return snic_device_mmio_read(dev_, 0, SNIC_REG_STATUS, 4) & SNIC_STATUS_LINK_UP; }

    std::atomic<uint32_t> interrupts[32] = {};
    std::atomic<bool> line_level{false};
    std::atomic<uint32_t> line_rises{0};

    char *ram(uint64_t bus) override { return ram_ + (bus - kBase); }
    uint64_t ram_base() const override { return kBase; }
    uint64_t ram_size() const override { return bytes_; }
    void write_register(uint32_t o, uint64_t v, unsigned s) override { snic_device_mmio_write(dev_, 0, o, v, s); }
    void doorbell(uint32_t p, uint32_t o, uint32_t v) override {
        snic_device_mmio_write(dev_, 2, uint64_t{p} * SNIC_PAGE_SIZE + o, v, 4);
    }
    uint32_t ip() const override { return ip_; }
    bool run(const std::function<bool()> &done) override {
        auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (!done()) {
            if (std::chrono::steady_clock::now() > end) return false;
            std::this_thread::yield();
        }
        return true;
    }

  private:
    uint64_t bytes_;
    fabric::Fd fd_;
    char *ram_ = nullptr;
    uint32_t ip_ = 0;
    snic_device *dev_ = nullptr;
};

}  // namespace sim
