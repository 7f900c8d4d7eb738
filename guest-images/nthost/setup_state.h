// SPDX-License-Identifier: GPL-2.0-or-later
//
// setup_state.h: what programs that install something find and change on the machine: registry (registry.h), Winsock catalogs, PCI
// devices and their drivers, and the Windows directory, which is a directory of the host (--windows). --registry FILE loads all of it
// from a JSON file and writes it back when the programs have ended, in one form whatever the order of changes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base.h"
#include "nt_types.h"

namespace nth {

// WSAPROTOCOL_INFOW
struct ProtocolInfo {
    uint32_t service_flags[4], provider_flags;
    uint8_t provider[16];
    uint32_t id;
    int32_t chain_length;
    uint32_t chain[7];
    int32_t version, family, max_address, min_address, socket_type, protocol, protocol_max_offset, byte_order, security;
    uint32_t message_size, provider_reserved;
    nt::WCHAR text[256];
};
static_assert(sizeof(ProtocolInfo) == 628);

struct CatalogEntry {
    ProtocolInfo info;
    std::string path;
};

struct PciDevice {
    std::vector<std::string> hardware_ids;
    std::string inf, service;  // of its driver; empty: none
    bool removed = false;      // until the next rescan
};

struct SetupState {
    FutexLock lock;                // for all below
    bool runs_32_bit = true;       // there is SysWOW64, and a catalog for it
    bool catalog_adds_first = false;  // a machine that puts new providers before the others
    std::vector<CatalogEntry> catalog[2];  // 64-bit, 32-bit
    uint32_t next_catalog_id = 1001;
    std::vector<PciDevice> devices;
    std::vector<std::pair<std::string, std::string>> packages;  // oemN.inf and the folder it came from
    std::string windows;           // host directory; empty: none given
    std::set<std::pair<uint64_t, uint64_t>> in_use;  // device and inode of files that can only be renamed
    std::vector<std::string> at_restart;  // files to be deleted then
};
SetupState &setup_state();

// --windows DIR. false with *error filled in.
bool use_windows_directory(const std::string &directory, std::string *error);
// --registry FILE. A file that does not exist is an empty machine.
bool load_setup_state(const std::string &file, std::string *error);
// Writes the file that was loaded, if one was.
void save_setup_state();

}  // namespace nth
