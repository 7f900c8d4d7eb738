// SPDX-License-Identifier: GPL-2.0-or-later
// domain_edit.h: puts a SAN NIC into the description of a libvirt domain that somebody else wrote, and takes it out
// again. Text in, text out: no libvirt, no files. What the NIC does not need is left as it is. What was changed is
// noted in the domain's <metadata>, in a namespace of our own, so that detach_nic() restores it; its other contents may
// have been edited in the meantime.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lab {

struct DomainFacts {
    std::string name, uuid, type, arch, machine, emulator;
};
// Throws UserError when it is not a domain.
DomainFacts domain_facts(const std::string &xml);

// As attach_nic() and detach_nic() write it, so that the two can be compared.
std::string rewritten(const std::string &xml);

// The NIC that attach_nic() has put into a domain, and what goes with it.
struct Attachment {
    std::string ip, nic, fabric, bus, slot, emulator, memory_source, memory_access;
    std::string seclabels;  // models that were switched off for it
    bool complete = false;  // the note in the metadata and the device are both there
    bool operator==(const Attachment &) const = default;
};
std::optional<Attachment> find_attachment(const std::string &xml);

struct AttachWish {
    std::string ip, nic, fabric;
    std::string slot;      // preferred; empty or taken: a free one is chosen
    std::string emulator;  // empty: the domain's own has the device
    // Security drivers of the host that would keep the hypervisor from its program and the fabric: switched off for
    // this domain.
    std::vector<std::string> confining_models;
};
// `xml` has no attachment. Throws UserError when the domain cannot have one.
std::string attach_nic(const std::string &xml, const AttachWish &wish);
// As it was before. Throws UserError when there is no attachment.
std::string detach_nic(const std::string &xml);

}  // namespace lab
