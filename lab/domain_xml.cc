// SPDX-License-Identifier: GPL-2.0-or-later
#include "domain_xml.h"

#include <spdlog/fmt/fmt.h>

namespace lab {

namespace {

std::string escaped(const std::string &text) {
    std::string out;
    for (char c : text) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '\'': out += "&apos;"; break;
            case '"': out += "&quot;"; break;
            default: out += c;
        }
    }
    return out;
}

std::string quoted_json(const std::string &text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + '"';
}

std::string security(const MicroGuest &g) {
    if (!g.as_root) return "";
    std::string xml;
    // The lab's files lie where their user has them; the hypervisor needs no confinement beyond that user's.
    if (g.secmodels.find("<model>dac</model>") != std::string::npos)
        xml += "  <seclabel type='static' model='dac' relabel='no'><label>+0:+0</label></seclabel>\n";
    for (const char *model : {"apparmor", "selinux"})
        if (g.secmodels.find(fmt::format("<model>{}</model>", model)) != std::string::npos)
            xml += fmt::format("  <seclabel type='none' model='{}'/>\n", model);
    return xml;
}

}  // namespace

std::string domain_xml(const MicroGuest &g) {
    std::string nic =
        fmt::format(R"({{"driver":"snic","id":"snic0","bus":"pcie.0","addr":"{}","name":{},"fabric":{},"ip":{}{}{}}})",
                    kNicSlot, quoted_json(g.nic_name), quoted_json(g.fabric), quoted_json(g.ip),
                    g.nic_options.empty() ? "" : ",", g.nic_options);
    std::string command =
        fmt::format("console=ttyS0 quiet mitigations=off nokaslr no_timer_check tsc=reliable audit=0 panic=-1 {}",
                    g.iommu ? "intel_iommu=on" : "intel_iommu=off");
    // TCG copies `rep movsb` byte by byte: without ERMS the guest uses better instructions.
    std::string cpu = g.kvm ? "<cpu mode='host-passthrough'/>"
                            : "<cpu mode='maximum' check='none'><feature policy='disable' name='erms'/></cpu>";
    std::string memory =
        g.share_memory ? "  <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>\n" : "";
    std::string iommu = g.iommu ? "    <iommu model='intel'><driver intremap='on'/></iommu>\n" : "";
    return fmt::format(
        "<domain type='{}' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n"
        "  <name>{}</name>\n"
        "  <memory unit='MiB'>{}</memory>\n{}"
        "  <vcpu>{}</vcpu>\n"
        "  <os>\n    <type arch='x86_64' machine='q35'>hvm</type>\n    <kernel>{}</kernel>\n    <initrd>{}</initrd>\n  "
        "  <cmdline>{}</cmdline>\n  </os>\n"
        "  <features><acpi/><apic/><ioapic driver='qemu'/><smm state='off'/><vmport state='off'/></features>\n"
        "  {}\n"
        "  <clock offset='utc'><timer name='hpet' present='no'/></clock>\n"
        "  <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>\n"
        "  <devices>\n"
        "    <emulator>{}</emulator>\n"
        "    <serial type='file'><source path='{}'/><target port='0'/></serial>\n"
        "    <serial type='unix'><source mode='bind' path='{}'/><target port='1'/></serial>\n"
        "    <controller type='usb' model='none'/>\n"
        "    <memballoon model='none'/>\n{}"
        "  </devices>\n{}"
        "  <qemu:commandline>\n    <qemu:arg value='-device'/>\n    <qemu:arg value='{}'/>\n  </qemu:commandline>\n"
        "</domain>\n",
        g.kvm ? "kvm" : "qemu", escaped(g.domain), g.memory_mib, memory, g.cpus, escaped(g.kernel),
        escaped(g.initramfs), escaped(command), cpu, escaped(g.emulator), escaped(g.console_log),
        escaped(g.agent_socket), iommu, security(g), escaped(nic));
}

}  // namespace lab
