// SPDX-License-Identifier: GPL-2.0-or-later
//
// device.h: the one PCI function of the machine, as its back end shows it to the rest of nthost.
//
// Contract: memory BARs have bus addresses outside the page pool's; fill_mapping() makes reserved virtual pages reach
// the BAR (by a mapping or by trapping). Interrupts arrive through cpu.h. DMA reaches exactly the page pool, at its bus
// addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace nth {

class Device {
  public:
    struct Bar {
        unsigned index;
        uint64_t bus, size;
    };
    virtual ~Device() = default;

    const std::vector<Bar> &bars() const { return bars_; }
    unsigned vectors() const { return vectors_; }  // messages that the function can send; 0: line only

    // Makes [address, address + size) reach the BAR at bus address `bus`. false: not within one BAR.
    virtual bool fill_mapping(uint64_t address, uint64_t bus, uint64_t size) = 0;
    virtual void drop_mapping(uint64_t address, uint64_t size) = 0;

    virtual void use_messages(unsigned count) = 0;
    virtual void use_line() = 0;
    virtual void stop_interrupts() = 0;

    // Pulls the function out of its slot: BARs read ones, no DMA, no interrupts from when this returns. false: it cannot be.
    virtual bool unplug() { return false; }

    // Configuration space; out of range reads ones.
    virtual void read_config(uint32_t offset, void *to, uint32_t length) = 0;
    virtual void write_config(uint32_t offset, const void *from, uint32_t length) = 0;

    const Bar *bar_of(uint64_t bus) const {
        for (const Bar &b : bars_)
            if (bus - b.bus < b.size) return &b;
        return nullptr;
    }

  protected:
    std::vector<Bar> bars_;
    unsigned vectors_ = 0;
};

extern std::unique_ptr<Device> g_device;  // null: --device none

// "inproc,fabric=...,ip=...", "pci=0000:00:05.0", "none". Null with *error empty: none; else *error is one line.
std::unique_ptr<Device> make_device(const std::string &text, std::string *error);
std::unique_ptr<Device> make_inproc_device(const std::string &options, std::string *error);
std::unique_ptr<Device> make_pci_device(const std::string &address, std::string *error);

// Without an IOMMU the function sees physical addresses. false: the options are wrong, *error is one line.
bool pci_needs_physical_memory(const std::string &options, bool *physical, std::string *error);
std::unique_ptr<Device> make_uio_device(const std::string &address, std::string *error);
// Lets the kernel back shared memory with large pages: for the guest, whose kernel is ours to tune. Best effort.
void allow_huge_shared_memory();

// Whether the machine offers message interrupts at all (NT 5.2 does not).
extern bool g_message_interrupts;

}  // namespace nth
