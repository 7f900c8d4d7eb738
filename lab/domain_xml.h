// SPDX-License-Identifier: GPL-2.0-or-later
// domain_xml.h: the libvirt description of a micro guest with a SAN NIC.
#pragma once

#include <string>

namespace lab {

struct MicroGuest {
    std::string domain;  // libvirt name
    std::string emulator, kernel, initramfs;
    unsigned memory_mib = 256;
    unsigned cpus = 1;
    bool kvm = false;
    bool iommu = true;         // the checking default: vfio-pci behind intel-iommu
    std::string console_log;   // first serial port, a file
    std::string agent_socket;  // second serial port
    std::string fabric;        // sanfabricd's socket
    std::string nic_name, ip;
    std::string nic_options;  // more snic properties, as JSON members: "\"revoke\":\"deregister\""
    bool share_memory = true;
    bool as_root = false;   // the hypervisor runs as root, outside the host's security driver
    std::string secmodels;  // of the host, from libvirt's capabilities
};

// PCI address of the NIC inside the guest. Explicit: libvirt does not know of devices passed behind its back.
inline constexpr const char *kNicSlot = "0x10";
inline constexpr const char *kNicPciAddress = "0000:00:10.0";

std::string domain_xml(const MicroGuest &guest);

}  // namespace lab
