// SPDX-License-Identifier: GPL-2.0-or-later
#include "domain_edit.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "paths.h"
#include "xml.h"

namespace lab {

using nlohmann::json;

namespace {

constexpr char kQemu[] = "http://libvirt.org/schemas/domain/qemu/1.0";
constexpr char kOurs[] = "http://sanlab/schemas/domain/1.0";
constexpr char kDeviceId[] = "sanlab-snic";

// What stood before something that was set, when nothing stood there.
constexpr char kNone[] = "none";

struct Bus {
    const char *name;
    std::set<unsigned> fixed;  // the chip set's own, which libvirt does not list
};

std::optional<Bus> root_bus(const std::string &machine) {
    auto begins = [&](const char *with) { return machine.rfind(with, 0) == 0; };
    if (machine == "q35" || begins("pc-q35")) return Bus{"pcie.0", {0, 0x1F}};
    if (machine == "pc" || begins("pc-i440fx")) return Bus{"pci.0", {0, 1, 2}};
    return std::nullopt;
}

xmlNodePtr note_of(xmlNodePtr root) { return xml::child(xml::child(root, "metadata"), "attached", kOurs); }

// One -device of the domain's own QEMU arguments.
struct Device {
    xmlNodePtr option = nullptr, value = nullptr;
    json properties;  // also of the form name,key=value,...
};

std::vector<Device> devices(xmlNodePtr root) {
    std::vector<Device> found;
    xmlNodePtr option = nullptr;
    for (xmlNodePtr arg : xml::children(xml::child(root, "commandline", kQemu), "arg", kQemu)) {
        const std::string text = xml::attribute(arg, "value");
        if (option) {
            Device d{option, arg, json::parse(text, nullptr, false)};
            if (!d.properties.is_object()) {
                d.properties = json::object();
                std::istringstream in(text);
                for (std::string part; std::getline(in, part, ',');) {
                    const size_t equals = part.find('=');
                    if (equals == std::string::npos) d.properties["driver"] = part;
                    else d.properties[part.substr(0, equals)] = part.substr(equals + 1);
                }
            }
            found.push_back(std::move(d));
        }
        option = text == "-device" ? arg : nullptr;
    }
    return found;
}

std::string text_of(const json &object, const char *key) {
    auto it = object.find(key);
    return it == object.end() ? "" : it->is_string() ? it->get<std::string>() : it->dump();
}

std::optional<Device> our_device(xmlNodePtr root) {
    for (Device &d : devices(root))
        if (text_of(d.properties, "driver") == "snic" && text_of(d.properties, "id") == kDeviceId) return std::move(d);
    return std::nullopt;
}

unsigned number(const std::string &text, int base) {
    return static_cast<unsigned>(std::strtoul(text.c_str(), nullptr, base));
}

std::string hex_slot(unsigned slot) {
    char text[8];
    std::snprintf(text, sizeof text, "0x%02x", slot);
    return text;
}

// libvirt does not know of devices in <qemu:commandline>: it must not have given the slot away, nor do so before others
// are taken. It hands them out from below, so that ours lies in the upper half.
std::string free_slot(xmlNodePtr root, const Bus &bus, const std::string &preferred) {
    std::set<unsigned> taken = bus.fixed;
    xml::each_element(xml::child(root, "devices"), [&](xmlNodePtr n) {
        if (xml::is(n, "address") && xml::attribute(n, "type") == "pci" &&
            number(xml::attribute(n, "domain"), 0) == 0 && number(xml::attribute(n, "bus"), 0) == 0)
            taken.insert(number(xml::attribute(n, "slot"), 0));
    });
    for (const Device &d : devices(root)) {
        const std::string on = text_of(d.properties, "bus"), at = text_of(d.properties, "addr");
        if (!at.empty() && (on.empty() || on == bus.name)) taken.insert(number(at.substr(0, at.find('.')), 16));
    }
    std::vector<unsigned> candidates;
    if (!preferred.empty()) candidates.push_back(number(preferred, 0));
    for (unsigned s = 0x10; s <= 0x1C; s++) candidates.push_back(s);
    for (unsigned s = 0x0F; s >= 3; s--) candidates.push_back(s);
    for (unsigned s : candidates)
        if (s < 0x20 && !taken.count(s)) return hex_slot(s);
    throw UserError(std::string("the domain's bus ") + bus.name +
                    " has no free slot for the NIC; remove a device or move some behind a bridge");
}

// Sets an attribute of a child of <memoryBacking>, and notes what it was.
void set_memory(xmlNodePtr backing, xmlNodePtr note, const char *element, const char *key, const char *value) {
    xmlNodePtr node = xml::child(backing, element);
    xml::set_attribute(note, element, node ? xml::attribute(node, key) : kNone);
    // libvirt's order: hugepages, nosharepages, locked, source, access...
    if (!node) node = xml::insert_after(backing, {"hugepages", "nosharepages", "locked", "source"}, element);
    xml::set_attribute(node, key, value);
}

void restore_memory(xmlNodePtr root, xmlNodePtr note, const char *element, const char *key, const char *value) {
    const std::string before = xml::attribute(note, element);
    xmlNodePtr node = xml::child(xml::child(root, "memoryBacking"), element);
    if (before.empty() || xml::attribute(node, key) != value) return;  // its owner has set something else since
    if (before == kNone) xml::remove(node);
    else xml::set_attribute(node, key, before);
}

void remove_if_empty(xmlNodePtr node) {
    if (node && !xml::has_elements(node)) xml::remove(node);
}

void share_memory(xmlNodePtr root, xmlNodePtr note) {
    xmlNodePtr backing = xml::child(root, "memoryBacking");
    if (!backing)
        backing = xml::insert_after(root, {"metadata", "maxMemory", "memory", "currentMemory"}, "memoryBacking");
    const std::string source = xml::attribute(xml::child(backing, "source"), "type");
    if (source != "memfd" && source != "file") set_memory(backing, note, "source", "type", "memfd");
    if (xml::attribute(xml::child(backing, "access"), "mode") != "shared")
        set_memory(backing, note, "access", "mode", "shared");
    for (xmlNodePtr cell : xml::children(xml::child(xml::child(root, "cpu"), "numa"), "cell"))
        if (xml::attribute(cell, "memAccess") == "private")
            throw UserError("NUMA cell " + xml::attribute(cell, "id") +
                            " of the domain has memAccess='private'; the NIC needs 'shared'");
}

}  // namespace

DomainFacts domain_facts(const std::string &text) {
    xml::Document doc(text);
    xmlNodePtr root = doc.root();
    if (!xml::is(root, "domain")) throw UserError("this is not the description of a domain");
    xmlNodePtr type = xml::child(xml::child(root, "os"), "type");
    return {xml::content(xml::child(root, "name")), xml::content(xml::child(root, "uuid")),
            xml::attribute(root, "type"),           xml::attribute(type, "arch"),
            xml::attribute(type, "machine"),        xml::content(xml::child(xml::child(root, "devices"), "emulator"))};
}

std::string rewritten(const std::string &text) { return xml::Document(text).text(); }

std::optional<Attachment> find_attachment(const std::string &text) {
    xml::Document doc(text);
    xmlNodePtr root = doc.root(), note = note_of(root);
    const std::optional<Device> device = our_device(root);
    if (!note && !device) return std::nullopt;
    Attachment a;
    if (device) {
        a.ip = text_of(device->properties, "ip");
        a.nic = text_of(device->properties, "name");
        a.fabric = text_of(device->properties, "fabric");
        a.bus = text_of(device->properties, "bus");
        a.slot = text_of(device->properties, "addr");
    }
    a.emulator = xml::content(xml::child(xml::child(root, "devices"), "emulator"));
    a.memory_source = xml::attribute(xml::child(xml::child(root, "memoryBacking"), "source"), "type");
    a.memory_access = xml::attribute(xml::child(xml::child(root, "memoryBacking"), "access"), "mode");
    a.seclabels = xml::attribute(note, "seclabels");
    a.complete = note && device;
    return a;
}

std::string attach_nic(const std::string &text, const AttachWish &wish) {
    xml::Document doc(text);
    xmlNodePtr root = doc.root();
    const DomainFacts facts = domain_facts(text);
    if (facts.type != "kvm" && facts.type != "qemu")
        throw UserError("domain " + facts.name + " is of type '" + facts.type +
                        "'; the NIC is a device of QEMU: 'kvm' and 'qemu' can have it");
    if (facts.arch != "x86_64")
        throw UserError("domain " + facts.name + " is for " + facts.arch + "; the driver of the NIC is for x86_64");
    const std::optional<Bus> bus = root_bus(facts.machine);
    if (!bus)
        throw UserError("domain " + facts.name + " has machine '" + facts.machine +
                        "'; accepted: pc-q35-*, pc-i440fx-*");
    for (const Device &d : devices(root))
        if (text_of(d.properties, "driver") == "snic")
            throw UserError("domain " + facts.name + " has a snic device that sanlab did not attach (id '" +
                            text_of(d.properties, "id") + "' in <qemu:commandline>); remove it first");

    xmlNodePtr metadata = xml::child(root, "metadata");
    if (!metadata) metadata = xml::insert_after(root, {"name", "uuid", "genid", "title", "description"}, "metadata");
    xmlNodePtr note = xml::append(metadata, "attached");
    xmlSetNs(note,
             xmlNewNs(note, reinterpret_cast<const xmlChar *>(kOurs), reinterpret_cast<const xmlChar *>("sanlab")));
    share_memory(root, note);

    xmlNodePtr all_devices = xml::child(root, "devices");
    if (!all_devices) throw UserError("domain " + facts.name + " has no <devices>");
    if (!wish.emulator.empty() && wish.emulator != facts.emulator) {
        xml::set_attribute(note, "emulator", facts.emulator.empty() ? kNone : facts.emulator);
        xml::set_attribute(note, "replaced-by", wish.emulator);
        xmlNodePtr emulator = xml::child(all_devices, "emulator");
        if (!emulator) emulator = xml::insert_after(all_devices, {}, "emulator");
        xml::set_content(emulator, wish.emulator);
    }

    std::string switched_off;
    for (const std::string &model : wish.confining_models) {
        bool has = false;
        for (xmlNodePtr label : xml::children(root, "seclabel")) has = has || xml::attribute(label, "model") == model;
        if (has) continue;  // its owner has decided
        xmlNodePtr label = xml::insert_after(root, {"devices", "seclabel"}, "seclabel");
        xml::set_attribute(label, "type", "none");
        xml::set_attribute(label, "model", model);
        switched_off += (switched_off.empty() ? "" : " ") + model;
    }
    if (!switched_off.empty()) xml::set_attribute(note, "seclabels", switched_off);

    const std::string slot = free_slot(root, *bus, wish.slot);
    xmlNsPtr qemu = xmlSearchNsByHref(doc.root()->doc, root, reinterpret_cast<const xmlChar *>(kQemu));
    if (!qemu)
        qemu = xmlNewNs(root, reinterpret_cast<const xmlChar *>(kQemu), reinterpret_cast<const xmlChar *>("qemu"));
    xmlNodePtr command = xml::child(root, "commandline", kQemu);
    if (!command) command = xml::append(root, "commandline", qemu);
    nlohmann::ordered_json device = {{"driver", "snic"}, {"id", kDeviceId},       {"bus", bus->name}, {"addr", slot},
                                     {"name", wish.nic}, {"fabric", wish.fabric}, {"ip", wish.ip}};
    for (const std::string &value : {std::string("-device"), device.dump()})
        xml::set_attribute(xml::append(command, "arg", qemu), "value", value);
    return doc.text();
}

std::string detach_nic(const std::string &text) {
    xml::Document doc(text);
    xmlNodePtr root = doc.root(), note = note_of(root);
    const std::optional<Device> device = our_device(root);
    if (!note && !device) throw UserError("domain " + domain_facts(text).name + " has no NIC that sanlab attached");
    if (device) {
        xml::remove(device->option);
        xml::remove(device->value);
        remove_if_empty(xml::child(root, "commandline", kQemu));
    }
    if (!note) return doc.text();
    restore_memory(root, note, "source", "type", "memfd");
    restore_memory(root, note, "access", "mode", "shared");
    remove_if_empty(xml::child(root, "memoryBacking"));
    std::istringstream models(xml::attribute(note, "seclabels"));
    for (std::string model; models >> model;)
        for (xmlNodePtr label : xml::children(root, "seclabel"))
            if (xml::attribute(label, "model") == model && xml::attribute(label, "type") == "none") xml::remove(label);
    if (const std::string before = xml::attribute(note, "emulator"); !before.empty()) {
        xmlNodePtr emulator = xml::child(xml::child(root, "devices"), "emulator");
        if (xml::content(emulator) != xml::attribute(note, "replaced-by"))
            emulator = nullptr;  // its owner has set another since
        if (emulator && before == kNone) xml::remove(emulator);
        else if (emulator) xml::set_content(emulator, before);
    }
    xmlNodePtr metadata = note->parent;
    xml::remove(note);
    remove_if_empty(metadata);
    return doc.text();
}

}  // namespace lab
