/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * snic: a SAN (RDMA) NIC for development without hardware.
 *
 * This file is glue: PCI identity, BARs, MSI-X, properties, and access to guest memory. The NIC itself, its engine thread and its
 * place on the fabric are libsnicdevice (snic_device.h). MMIO handlers only hand over; DMA goes to RAM only.
 *
 * Locks: the engine calls snic_map without the BQL (inside an RCU read section, snic_enter/snic_leave) and snic_message with no lock
 * held, which takes the BQL. Whoever waits for the engine (unplug, the state property) must not hold the BQL meanwhile.
 */
#include "compat.h"

#include "sanlab/snic_hw.h"
#include "snic_device.h"
#include "trace.h"

#define TYPE_SNIC "snic"
OBJECT_DECLARE_SIMPLE_TYPE(SnicState, SNIC)

#define SNIC_MSIX_BAR_SIZE 4096
#define SNIC_MSIX_PBA 2048

typedef struct SnicWritten {
    void *at;
    hwaddr len;
} SnicWritten;

struct SnicState {
    PCIDevice parent_obj;

    MemoryRegion registers;
    MemoryRegion doorbells;
    MemoryRegion msix;
    struct snic_device *dev;
    QEMUBH *line_bh;
    bool line_level; /* wanted by the device; atomic */
    GArray *written; /* of SnicWritten: mapped for writing in this burst; engine thread only */

    char *fabric;
    char *name;
    char *ip;
    char *revoke;
    bool direct;
    bool realtime;
    uint32_t prefix;
    uint64_t guid;
    uint32_t vectors;
    uint32_t doorbell_pages;
    uint32_t max_qp, max_cq, max_mr, max_pd, max_pages;
    uint32_t link_rate;
    uint64_t delay_ns, jitter_ns, op_cost_ns;
    uint32_t spin_us;
    uint64_t seed;
    uint32_t fail_command;
    uint32_t fail_status;
    uint16_t vendor_id, device_id;
};

/* --- guest memory: engine thread ------------------------------------------------------------------------------------------ */

static void snic_enter(void *opaque)
{
    rcu_read_lock();
}

static void snic_leave(void *opaque)
{
    SnicState *s = opaque;
    AddressSpace *as = pci_get_address_space(&s->parent_obj);

    /* Tells migration and the translator what has been written, and drops the references of snic_map. */
    for (guint i = 0; i < s->written->len; i++) {
        SnicWritten *w = &g_array_index(s->written, SnicWritten, i);
        address_space_unmap(as, w->at, w->len, true, w->len);
    }
    g_array_set_size(s->written, 0);
    rcu_read_unlock();
}

static void *snic_map(void *opaque, uint64_t addr, size_t *len, bool write)
{
    SnicState *s = opaque;
    hwaddr xlat, l = *len;
    MemoryRegion *mr;
    void *p;

    mr = address_space_translate(pci_get_address_space(&s->parent_obj), addr, &xlat, &l, write, MEMTXATTRS_UNSPECIFIED);
    if (l == 0 || !snic_is_direct(mr, write)) {
        trace_snic_map_refused(addr, *len, write);
        return NULL;
    }
    *len = l;
    p = (char *)memory_region_get_ram_ptr(mr) + xlat;
    if (write) {
        SnicWritten *last = s->written->len ? &g_array_index(s->written, SnicWritten, s->written->len - 1) : NULL;
        if (last && last->at == p && last->len >= l) {
            return p;
        }
        SnicWritten w = {p, l};
        memory_region_ref(mr);
        g_array_append_val(s->written, w);
    }
    return p;
}

/* --- interrupts ------------------------------------------------------------------------------------------------------------- */

static void snic_update_line(void *opaque)
{
    SnicState *s = opaque;

    pci_set_irq(&s->parent_obj, qatomic_read(&s->line_level));
}

/* Engine thread, or a processor inside snic_device_mmio_write (which then calls snic_update_line itself). */
static void snic_line(void *opaque, bool level)
{
    SnicState *s = opaque;

    trace_snic_line(level);
    qatomic_set(&s->line_level, level);
    qemu_bh_schedule(s->line_bh);
}

static void snic_message(void *opaque, unsigned vector)
{
    SnicState *s = opaque;

    trace_snic_message(vector);
    snic_lock_bql();
    msix_notify(&s->parent_obj, vector);
    snic_unlock_bql();
}

static void snic_log(void *opaque, int level, const char *text)
{
    SnicState *s = opaque;

    trace_snic_log(level, text);
    if (level == 0) {
        error_report("snic %s: %s", s->ip, text);
    } else if (level == 1) {
        warn_report("snic %s: %s", s->ip, text);
    }
}

static const struct snic_device_ops snic_ops = {
    .map = snic_map,
    .enter = snic_enter,
    .leave = snic_leave,
    .message = snic_message,
    .line = snic_line,
    .log = snic_log,
};

/* --- MMIO: processors, with the BQL ------------------------------------------------------------------------------------------ */

static uint64_t snic_registers_read(void *opaque, hwaddr addr, unsigned size)
{
    SnicState *s = opaque;
    uint64_t value = snic_device_mmio_read(s->dev, SNIC_BAR_REGISTERS, addr, size);

    trace_snic_register_read(addr, size, value);
    return value;
}

static void snic_registers_write(void *opaque, hwaddr addr, uint64_t value, unsigned size)
{
    SnicState *s = opaque;

    trace_snic_register_write(addr, size, value);
    snic_device_mmio_write(s->dev, SNIC_BAR_REGISTERS, addr, value, size);
    if (addr == SNIC_REG_IRQ_CAUSE || addr == SNIC_REG_IRQ_MASK || addr == SNIC_REG_CTRL) {
        snic_update_line(s);
    }
}

static uint64_t snic_doorbells_read(void *opaque, hwaddr addr, unsigned size)
{
    return 0;
}

static void snic_doorbells_write(void *opaque, hwaddr addr, uint64_t value, unsigned size)
{
    SnicState *s = opaque;

    trace_snic_doorbell(addr, value);
    snic_device_mmio_write(s->dev, SNIC_BAR_DOORBELLS, addr, value, size);
}

static const MemoryRegionOps snic_register_ops = {
    .read = snic_registers_read,
    .write = snic_registers_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = {.min_access_size = 1, .max_access_size = 8, .unaligned = true},
    .impl = {.min_access_size = 1, .max_access_size = 8, .unaligned = true},
};

static const MemoryRegionOps snic_doorbell_ops = {
    .read = snic_doorbells_read,
    .write = snic_doorbells_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = {.min_access_size = 1, .max_access_size = 8, .unaligned = true},
    .impl = {.min_access_size = 1, .max_access_size = 8, .unaligned = true},
};

static void snic_config_write(PCIDevice *pdev, uint32_t addr, uint32_t value, int len)
{
    SnicState *s = SNIC(pdev);

    pci_default_write_config(pdev, addr, value, len);
    if (s->dev) {
        snic_device_use_messages(s->dev, msix_enabled(pdev));
    }
}

/* --- life ------------------------------------------------------------------------------------------------------------------- */

typedef struct SnicRam {
    struct snic_device_ram pieces[SNIC_DEVICE_MAX_RAM];
    size_t count;
} SnicRam;

static int snic_add_ram(RAMBlock *rb, void *opaque)
{
    SnicRam *ram = opaque;
    uint64_t size = qemu_ram_get_used_length(rb);

    /* Small blocks are firmware and video memory: reachable by DMA, but not worth sharing. */
    if (size < 16 * MiB || ram->count == SNIC_DEVICE_MAX_RAM) {
        return 0;
    }
    ram->pieces[ram->count++] = (struct snic_device_ram){
        .host = qemu_ram_get_host_addr(rb),
        .size = size,
        .fd = qemu_ram_is_shared(rb) ? qemu_ram_get_fd(rb) : -1,
        .fd_offset = snic_ram_fd_offset(rb),
    };
    return 0;
}

static void snic_realize(PCIDevice *pdev, Error **errp)
{
    SnicState *s = SNIC(pdev);
    SnicRam ram = {};
    char err[256] = "";
    bool deregister = s->revoke && !strcmp(s->revoke, "deregister");

    if (!s->ip) {
        error_setg(errp, "snic: property 'ip' is missing; give the NIC's IPv4 address, like ip=10.0.0.1");
        return;
    }
    if (s->revoke && !deregister && strcmp(s->revoke, "key")) {
        error_setg(errp, "snic: revoke '%s' is not one of: key, deregister", s->revoke);
        return;
    }
    struct snic_device_config config = {
        .fabric = s->fabric,
        .name = s->name ? s->name : DEVICE(s)->id,
        .ip = s->ip,
        .prefix = s->prefix,
        .guid = s->guid,
        .vectors = s->vectors,
        .doorbell_pages = s->doorbell_pages,
        .max_qp = s->max_qp,
        .max_cq = s->max_cq,
        .max_mr = s->max_mr,
        .max_pd = s->max_pd,
        .max_pages = s->max_pages,
        .revoke_by_deregister = deregister,
        .no_direct = !s->direct,
        .link_rate_mbit = s->link_rate,
        .delay_ns = s->delay_ns,
        .jitter_ns = s->jitter_ns,
        .op_cost_ns = s->op_cost_ns,
        .fail_command = s->fail_command,
        .fail_status = s->fail_status,
        .seed = s->seed,
        .spin_us = s->spin_us,
        .realtime = s->realtime,
    };

    pci_config_set_vendor_id(pdev->config, s->vendor_id);
    pci_config_set_device_id(pdev->config, s->device_id);
    pci_config_set_interrupt_pin(pdev->config, 1);
    qemu_ram_foreach_block(snic_add_ram, &ram);

    s->written = g_array_new(false, false, sizeof(SnicWritten));
    s->line_bh = qemu_bh_new(snic_update_line, s);
    s->dev = snic_device_create(&config, ram.pieces, ram.count, &snic_ops, s, err, sizeof err);
    if (!s->dev) {
        error_setg(errp, "snic: %s", err);
        goto fail;
    }
    memory_region_init_io(&s->registers, OBJECT(s), &snic_register_ops, s, "snic-registers", snic_device_register_bar_size(s->dev));
    memory_region_init_io(&s->doorbells, OBJECT(s), &snic_doorbell_ops, s, "snic-doorbells", snic_device_doorbell_bar_size(s->dev));
    memory_region_init(&s->msix, OBJECT(s), "snic-msix", SNIC_MSIX_BAR_SIZE);
    if (msix_init(pdev, s->vectors, &s->msix, SNIC_BAR_MSIX, 0, &s->msix, SNIC_BAR_MSIX, SNIC_MSIX_PBA, 0, errp)) {
        goto fail;
    }
    for (uint32_t v = 0; v < s->vectors; v++) {
        msix_vector_use(pdev, v);
    }
    pci_register_bar(pdev, SNIC_BAR_REGISTERS, PCI_BASE_ADDRESS_SPACE_MEMORY | PCI_BASE_ADDRESS_MEM_TYPE_64, &s->registers);
    pci_register_bar(pdev, SNIC_BAR_DOORBELLS, PCI_BASE_ADDRESS_SPACE_MEMORY | PCI_BASE_ADDRESS_MEM_TYPE_64, &s->doorbells);
    pci_register_bar(pdev, SNIC_BAR_MSIX, PCI_BASE_ADDRESS_SPACE_MEMORY | PCI_BASE_ADDRESS_MEM_TYPE_64, &s->msix);
    trace_snic_realize(s->ip, s->fabric ? s->fabric : "", (int)ram.count);
    return;

fail:
    if (s->dev) {
        snic_device_destroy(s->dev);
        s->dev = NULL;
    }
    qemu_bh_delete(s->line_bh);
    g_array_free(s->written, true);
}

static void snic_exit(PCIDevice *pdev)
{
    SnicState *s = SNIC(pdev);

    /* The engine may be waiting for the BQL to send a message, and destroying it waits for the engine. */
    snic_unlock_bql();
    snic_device_destroy(s->dev);
    snic_lock_bql();
    s->dev = NULL;
    msix_uninit(pdev, &s->msix, &s->msix);
    qemu_bh_delete(s->line_bh);
    g_array_free(s->written, true);
}

static void snic_reset(DeviceState *dev)
{
    SnicState *s = SNIC(dev);

    trace_snic_reset();
    snic_device_reset(s->dev);
    snic_device_use_messages(s->dev, false);
}

static char *snic_get_state(Object *obj, Error **errp)
{
    SnicState *s = SNIC(obj);
    size_t len = 1 << 20;
    char *text = g_malloc0(len);

    if (!s->dev) {
        return g_strdup("{}"); /* not realized */
    }
    snic_unlock_bql();
    size_t need;
    /* Each call makes a new document, and objects come meanwhile: until one fits. */
    while ((need = snic_device_state_json(s->dev, text, len)) >= len) {
        len = need + 65536;
        text = g_realloc(text, len);
    }
    snic_lock_bql();
    return text;
}

static Property snic_properties[] = {
    DEFINE_PROP_STRING("fabric", SnicState, fabric),
    DEFINE_PROP_STRING("name", SnicState, name),
    DEFINE_PROP_STRING("ip", SnicState, ip),
    DEFINE_PROP_UINT32("prefix", SnicState, prefix, 24),
    DEFINE_PROP_UINT64("guid", SnicState, guid, 0),
    DEFINE_PROP_UINT32("vectors", SnicState, vectors, 4),
    DEFINE_PROP_UINT32("doorbell-pages", SnicState, doorbell_pages, 256),
    DEFINE_PROP_UINT32("max-qp", SnicState, max_qp, 4096),
    DEFINE_PROP_UINT32("max-cq", SnicState, max_cq, 4096),
    DEFINE_PROP_UINT32("max-mr", SnicState, max_mr, 65536),
    DEFINE_PROP_UINT32("max-pd", SnicState, max_pd, 4096),
    DEFINE_PROP_UINT32("max-pages", SnicState, max_pages, 1 << 24),
    DEFINE_PROP_STRING("revoke", SnicState, revoke),
    DEFINE_PROP_BOOL("direct", SnicState, direct, true),
    DEFINE_PROP_UINT32("link-rate", SnicState, link_rate, 0),
    DEFINE_PROP_UINT64("delay-ns", SnicState, delay_ns, 0),
    DEFINE_PROP_UINT64("jitter-ns", SnicState, jitter_ns, 0),
    DEFINE_PROP_UINT64("op-cost-ns", SnicState, op_cost_ns, 0),
    DEFINE_PROP_BOOL("x-realtime", SnicState, realtime, true),
    DEFINE_PROP_UINT32("x-spin-us", SnicState, spin_us, 3),
    DEFINE_PROP_UINT64("x-seed", SnicState, seed, 0),
    DEFINE_PROP_UINT32("x-fail-command", SnicState, fail_command, 0),
    DEFINE_PROP_UINT32("x-fail-status", SnicState, fail_status, SNIC_ERR_RESOURCES),
    DEFINE_PROP_UINT16("vendor-id", SnicState, vendor_id, SNIC_PCI_VENDOR_ID),
    DEFINE_PROP_UINT16("device-id", SnicState, device_id, SNIC_PCI_DEVICE_ID),
    SNIC_PROPERTIES_END
};

static const char *const snic_descriptions[][2] = {
    {"fabric", "path of sanfabricd's UNIX socket (none: the link stays down)"},
    {"name", "name on the fabric, up to 31 characters (default: the device's id)"},
    {"ip", "IPv4 address of the NIC, like 10.0.0.1 (required)"},
    {"prefix", "length of the network prefix, 1..31"},
    {"guid", "native address (0: made from the IP address)"},
    {"vectors", "interrupt vectors, 1..32"},
    {"doorbell-pages", "user contexts that can ring doorbells, 2..4096"},
    {"max-qp", "most queue pairs, 1..65536"},
    {"max-cq", "most completion queues, 1..65536"},
    {"max-mr", "most memory regions, 1..16777216"},
    {"max-pd", "most protection domains, 1..65536"},
    {"max-pages", "most page addresses in all regions and queues together, 1024..268435456"},
    {"revoke", "how remote access ends: key (MODIFY_MR, default) or deregister (DEREGISTER_MR only)"},
    {"direct", "copy straight between the guests' RAM when it is shared"},
    {"link-rate", "Mbit/s that the NIC sends at (0: as fast as it goes)"},
    {"delay-ns", "nanoseconds that everything takes to arrive here, up to 10 s"},
    {"jitter-ns", "nanoseconds added to that, uniform from 0 to this"},
    {"op-cost-ns", "nanoseconds that the NIC takes for each operation it begins"},
    {"x-realtime", "real-time priority for the engine's thread, where allowed"},
    {"x-spin-us", "microseconds that the engine polls before it sleeps; while it polls it takes a processor from the guests"},
    {"x-seed", "seed of the key variants (0: random)"},
    {"x-fail-command", "fault injection: the number of an admin command that is not carried out but fails (0: none)"},
    {"x-fail-status", "how it fails: enum snic_status, or 65535: it is never answered"},
    {"vendor-id", "PCI vendor ID"},
    {"device-id", "PCI device ID"},
};

static const VMStateDescription snic_vmstate = {
    .name = TYPE_SNIC,
    .unmigratable = 1, /* connections to other machines do not move with this one */
};

static void snic_class_init(ObjectClass *klass, SNIC_CLASS_CONST void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);
    PCIDeviceClass *pc = PCI_DEVICE_CLASS(klass);

    pc->realize = snic_realize;
    pc->exit = snic_exit;
    pc->config_write = snic_config_write;
    pc->vendor_id = SNIC_PCI_VENDOR_ID;
    pc->device_id = SNIC_PCI_DEVICE_ID;
    pc->revision = SNIC_PCI_REVISION;
    pc->class_id = SNIC_PCI_CLASS;
    dc->desc = "SAN NIC with RDMA, joined to others through sanfabricd";
    dc->vmsd = &snic_vmstate;
    snic_set_reset(dc, snic_reset);
    device_class_set_props(dc, snic_properties);
    object_class_property_add_str(klass, "state", snic_get_state, NULL);
    object_class_property_set_description(klass, "state", "the whole state of the NIC as JSON (read-only)");
    for (size_t i = 0; i < ARRAY_SIZE(snic_descriptions); i++) {
        object_class_property_set_description(klass, snic_descriptions[i][0], snic_descriptions[i][1]);
    }
    set_bit(DEVICE_CATEGORY_NETWORK, dc->categories);
}

static const TypeInfo snic_type = {
    .name = TYPE_SNIC,
    .parent = TYPE_PCI_DEVICE,
    .instance_size = sizeof(SnicState),
    .class_init = snic_class_init,
    .interfaces =
        (SNIC_CLASS_CONST InterfaceInfo[]){
            {INTERFACE_PCIE_DEVICE},
            {INTERFACE_CONVENTIONAL_PCI_DEVICE},
            {},
        },
};

static void snic_register_types(void)
{
    type_register_static(&snic_type);
}

type_init(snic_register_types)
