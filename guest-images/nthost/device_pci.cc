// SPDX-License-Identifier: GPL-2.0-or-later
#include "device.h"

namespace nth {

std::unique_ptr<Device> make_pci_device(const std::string &address, std::string *error) {
    *error = "--device pci=" + address + ": this build has no PCI back end yet";
    return nullptr;
}

} // namespace nth
