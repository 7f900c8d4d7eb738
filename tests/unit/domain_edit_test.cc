// SPDX-License-Identifier: GPL-2.0-or-later
// A NIC in the description of a domain that is somebody else's: what is added, what is kept, what detach restores, what is refused.
#include "domain_edit.h"

#include <gtest/gtest.h>

#include "paths.h"

namespace lab {
namespace {

struct Parts {
    std::string machine = "pc-q35-7.2", arch = "x86_64", type = "kvm";
    std::string metadata = {}, memory_backing = {}, cpu = {}, devices = {}, after = {}, command = {};
};

std::string domain(const Parts &p) {
    return "<domain type='" + p.type + "' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n  <name>win2003</name>\n"
           "  <uuid>851698ad-247d-45b3-89d0-92ef0824fa24</uuid>\n" + p.metadata +
           "  <memory unit='KiB'>65536</memory>\n  <currentMemory unit='KiB'>65536</currentMemory>\n" + p.memory_backing +
           "  <vcpu placement='static'>1</vcpu>\n  <os>\n    <type arch='" + p.arch + "' machine='" + p.machine + "'>hvm</type>\n  </os>\n" + p.cpu +
           "  <devices>\n    <emulator>/usr/bin/qemu-system-x86_64</emulator>\n" + p.devices + "  </devices>\n" + p.after + p.command + "</domain>\n";
}

AttachWish wish() { return {"10.77.0.100", "win2003", "/run/sanlab/fabric.sock", "", "/opt/qemu", {}}; }
std::string address(const std::string &slot) {
    return "    <video>\n      <address type='pci' domain='0x0000' bus='0x00' slot='" + slot + "' function='0x0'/>\n    </video>\n";
}
bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }
std::string replaced(std::string text, const std::string &from, const std::string &to) {
    text.replace(text.find(from), from.size(), to);
    return text;
}

// Detach gives the very text back, attaching twice is attaching once.
void expect_undone(const std::string &before, const AttachWish &w) {
    const std::string after = attach_nic(before, w);
    const auto found = find_attachment(after);
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->complete);
    EXPECT_EQ(found->ip, w.ip);
    EXPECT_EQ(found->memory_access, "shared");
    EXPECT_TRUE(found->memory_source == "memfd" || found->memory_source == "file") << after;
    const std::string back = detach_nic(after);
    EXPECT_EQ(back, rewritten(before));
    AttachWish again = w;
    again.slot = found->slot;
    EXPECT_EQ(*find_attachment(attach_nic(back, again)), *found);
}

TEST(DomainEdit, AddsWhatTheNicNeedsAndTakesItOutAgain) {
    const std::string before = domain({}), after = attach_nic(before, wish());
    EXPECT_TRUE(has(after, "<source type=\"memfd\"/>"));
    EXPECT_TRUE(has(after, "<access mode=\"shared\"/>"));
    EXPECT_TRUE(has(after, "<emulator>/opt/qemu</emulator>"));
    EXPECT_TRUE(has(after, "&quot;bus&quot;:&quot;pcie.0&quot;,&quot;addr&quot;:&quot;0x10&quot;"));
    expect_undone(before, wish());
}

TEST(DomainEdit, KeepsTheEmulatorThatHasTheDevice) {
    AttachWish w = wish();
    w.emulator.clear();
    EXPECT_TRUE(has(attach_nic(domain({}), w), "<emulator>/usr/bin/qemu-system-x86_64</emulator>"));
    expect_undone(domain({}), w);
}

TEST(DomainEdit, UsesTheBusOfTheMachine) {
    for (const char *machine : {"pc", "pc-i440fx-2.8"}) {
        const std::string before = domain({.machine = machine});
        EXPECT_EQ(find_attachment(attach_nic(before, wish()))->bus, "pci.0");
        expect_undone(before, wish());
    }
}

TEST(DomainEdit, KeepsOtherMemorySettings) {
    const std::string before = domain({.memory_backing = "  <memoryBacking>\n    <hugepages/>\n    <source type='anonymous'/>\n"
                                                         "    <access mode='private'/>\n    <discard/>\n  </memoryBacking>\n"});
    const std::string after = attach_nic(before, wish());
    EXPECT_TRUE(has(after, "<hugepages/>") && has(after, "<discard/>") && has(after, "memfd") && !has(after, "type=\"anonymous\""));
    expect_undone(before, wish());
    expect_undone(domain({.memory_backing = "  <memoryBacking>\n    <source type='file'/>\n    <access mode='shared'/>\n  </memoryBacking>\n"}), wish());
    expect_undone(domain({.memory_backing = "  <memoryBacking>\n    <access mode='private'/>\n    <discard/>\n  </memoryBacking>\n"}), wish());
    expect_undone(domain({.memory_backing = "<memoryBacking><access mode='private'/></memoryBacking>"}), wish());
    expect_undone(domain({.memory_backing = "  <memoryBacking>\n    <locked/>\n  </memoryBacking>\n"}), wish());
}

TEST(DomainEdit, KeepsOtherMetadataAndArguments) {
    const Parts parts{.metadata = "  <metadata>\n    <x:os xmlns:x=\"http://libosinfo.org/xmlns/libvirt/domain/1.0\">\n      <x:id/>\n    </x:os>\n  </metadata>\n",
                      .command = "  <qemu:commandline>\n    <qemu:arg value=\"-device\"/>\n    <qemu:arg value=\"edu,id=e,addr=10.0\"/>\n"
                                 "    <qemu:env name=\"A\" value=\"1\"/>\n  </qemu:commandline>\n"};
    const std::string before = domain(parts), after = attach_nic(before, wish());
    EXPECT_TRUE(has(after, "libosinfo") && has(after, "edu,id=e") && has(after, "name=\"A\""));
    EXPECT_EQ(find_attachment(after)->slot, "0x11") << "0x10 is taken by an argument of the domain's own";
    expect_undone(before, wish());
}

TEST(DomainEdit, ChoosesASlotThatLibvirtDoesNotUse) {
    std::string devices;
    for (int slot = 0x10; slot <= 0x1C; slot++) {
        char text[8];
        std::snprintf(text, sizeof text, "0x%02x", slot);
        EXPECT_EQ(find_attachment(attach_nic(domain({.devices = devices}), wish()))->slot, text);
        devices += address(text);
    }
    EXPECT_EQ(find_attachment(attach_nic(domain({.devices = devices}), wish()))->slot, "0x0f");
    for (int slot = 3; slot <= 0x0F; slot++) {
        char text[8];
        std::snprintf(text, sizeof text, "0x%02x", slot);
        devices += address(text);
    }
    EXPECT_THROW(attach_nic(domain({.devices = devices}), wish()), UserError);
    // A device behind a bridge is no hindrance, the address of a host's device none of the guest's.
    const std::string elsewhere = "    <hostdev><source><address domain='0x0000' bus='0x00' slot='0x10' function='0x0'/></source>"
                                  "<address type='pci' domain='0x0000' bus='0x01' slot='0x10' function='0x0'/></hostdev>\n";
    EXPECT_EQ(find_attachment(attach_nic(domain({.devices = elsewhere}), wish()))->slot, "0x10");
}

TEST(DomainEdit, KeepsItsSlotWhenAttachedAgain) {
    AttachWish w = wish();
    w.slot = "0x14";
    EXPECT_EQ(find_attachment(attach_nic(domain({}), w))->slot, "0x14");
    EXPECT_EQ(find_attachment(attach_nic(domain({.devices = address("0x14")}), w))->slot, "0x10") << "taken in the meantime";
}

TEST(DomainEdit, SwitchesConfinementOffWhereNobodyHasDecided) {
    AttachWish w = wish();
    w.confining_models = {"apparmor", "selinux"};
    const std::string dac = "  <seclabel type=\"dynamic\" model=\"dac\" relabel=\"yes\"/>\n";
    const std::string after = attach_nic(domain({.after = dac}), w);
    EXPECT_TRUE(has(after, "<seclabel type=\"none\" model=\"apparmor\"/>") && has(after, "model=\"selinux\"") && has(after, "model=\"dac\""));
    expect_undone(domain({.after = dac}), w);
    const std::string decided = domain({.after = "  <seclabel type=\"dynamic\" model=\"apparmor\" relabel=\"yes\"/>\n"});
    EXPECT_EQ(find_attachment(attach_nic(decided, w))->seclabels, "selinux");
    expect_undone(decided, w);
}

TEST(DomainEdit, LeavesWhatItsOwnerHasChangedSince) {
    std::string after = attach_nic(domain({}), wish());
    after = replaced(after, "<emulator>/opt/qemu<", "<emulator>/opt/qemu-9<");
    after = replaced(after, "type=\"memfd\"", "type=\"file\"");
    after = replaced(after, "<access mode", "<locked/>\n    <access mode");
    const std::string back = detach_nic(after);
    EXPECT_TRUE(has(back, "/opt/qemu-9") && has(back, "type=\"file\"") && has(back, "<locked/>"));
    EXPECT_FALSE(has(back, "snic") || has(back, "sanlab") || has(back, "shared"));
}

TEST(DomainEdit, HalfAnAttachmentIsFoundAndRemoved) {
    const std::string after = attach_nic(domain({}), wish());
    const size_t begin = after.find("  <qemu:commandline>"), end = after.find("</qemu:commandline>") + 20;
    const std::string without_device = std::string(after).erase(begin, end - begin);
    ASSERT_TRUE(find_attachment(without_device));
    EXPECT_FALSE(find_attachment(without_device)->complete);
    EXPECT_FALSE(has(detach_nic(without_device), "sanlab"));
    const size_t note = after.find("  <metadata>"), note_end = after.find("</metadata>") + 12;
    const std::string without_note = std::string(after).erase(note, note_end - note);
    EXPECT_FALSE(find_attachment(without_note)->complete);
    EXPECT_FALSE(has(detach_nic(without_note), "snic"));
}

TEST(DomainEdit, RefusesWhatCannotHaveTheNic) {
    auto refusal = [](const Parts &p) -> std::string {
        try {
            attach_nic(domain(p), wish());
        } catch (const UserError &e) {
            return e.what();
        }
        return "";
    };
    EXPECT_TRUE(has(refusal({.machine = "microvm"}), "'microvm'; accepted: pc-q35-*, pc-i440fx-*"));
    EXPECT_TRUE(has(refusal({.arch = "aarch64"}), "is for aarch64"));
    EXPECT_TRUE(has(refusal({.type = "xen"}), "of type 'xen'"));
    EXPECT_TRUE(has(refusal({.cpu = "  <cpu><numa><cell id='1' cpus='0' memory='65536' memAccess='private'/></numa></cpu>\n"}), "NUMA cell 1"));
    EXPECT_TRUE(has(refusal({.command = "  <qemu:commandline><qemu:arg value='-device'/><qemu:arg value='snic,id=mine,ip=10.0.0.1'/></qemu:commandline>\n"}),
                    "id 'mine'"));
    EXPECT_THROW(attach_nic("<domain", wish()), UserError);
    EXPECT_THROW(attach_nic("<network/>", wish()), UserError);
    EXPECT_THROW(detach_nic(domain({})), UserError);
    EXPECT_FALSE(find_attachment(domain({})));
}

TEST(DomainEdit, ReadsNoOtherFiles) {
    const std::string text = "<!DOCTYPE domain [<!ENTITY e SYSTEM \"file:///etc/hostname\">]>\n" + replaced(domain({}), "win2003", "a&e;b");
    EXPECT_EQ(domain_facts(text).name, "ab");
}

}  // namespace
}  // namespace lab
