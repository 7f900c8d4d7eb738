// SPDX-License-Identifier: GPL-2.0-or-later
#include "object.h"

#include <cstring>

#include "process.h"
#include "verifier.h"

namespace nth {

using namespace nt;

void (*g_on_last_file_handle)(void *, Process *);
void (*g_on_file_handle_close)(void *, Process *);

namespace {
std::atomic<int32_t> g_live[16];
constexpr uint32_t OBJECT_TAG = 0x206a624f;  // "Obj "
}  // namespace

const char *object_kind_name(ObjectKind kind) {
    static constexpr const char *names[] = {"any",  "event",  "semaphore", "mutant",    "timer", "thread", "process",
                                            "file", "device", "driver",    "host file", "key",   "link"};
    return names[static_cast<int>(kind)];
}

void *object_allocate(ObjectKind kind, size_t body, void (*destroy)(void *)) {
    void *p = pool_allocate(sizeof(ObjectHeader) + body, OBJECT_TAG, false);
    if (p == nullptr) return nullptr;
    memset(p, 0, sizeof(ObjectHeader) + body);
    auto *h = static_cast<ObjectHeader *>(p);
    h->magic = ObjectHeader::MAGIC;
    h->kind = kind;
    h->references = 1;
    h->size = static_cast<uint32_t>(body);
    h->destroy = destroy;
    g_live[static_cast<int>(kind)]++;
    return h->body();
}

ObjectHeader *object_header(void *body) {
    auto *h = static_cast<ObjectHeader *>(body) - 1;
    if (body == nullptr || (reinterpret_cast<uint64_t>(body) & 15) != 0 ||
        !is_kernel_address(reinterpret_cast<uint64_t>(body)) || h->magic != ObjectHeader::MAGIC)
        bugcheck(0x18, "REFERENCE_BY_POINTER", "%p is not an object", body);
    return h;
}

void object_reference(void *body) {
    object_header(body)->references++;
}

void object_release(void *body) {
    ObjectHeader *h = object_header(body);
    int32_t left = --h->references;
    if (left > 0) return;
    if (left < 0)
        bugcheck(0x18, "REFERENCE_BY_POINTER", "%s %p was dereferenced once too often", object_kind_name(h->kind),
                 body);
    if (h->destroy != nullptr) h->destroy(body);
    g_live[static_cast<int>(h->kind)]--;
    h->magic = 0;
    pool_free(h, OBJECT_TAG, true);
}

ObjectKind object_kind(void *body) {
    return object_header(body)->kind;
}

std::vector<std::string> live_objects() {
    std::vector<std::string> out;
    for (int i = 1; i <= static_cast<int>(ObjectKind::Symlink); i++)
        if (int n = g_live[i]; n != 0)
            out.push_back(std::to_string(n) + " " + object_kind_name(static_cast<ObjectKind>(i)));
    return out;
}

// ---- handles

uint64_t HandleTable::insert(void *body) {
    ObjectHeader *h = object_header(body);
    h->references++;
    h->handles++;
    Locked l(lock_);
    uint32_t i;
    if (free_.size() > 16) {  // a closed handle is not reused at once
        i = free_.front();
        free_.erase(free_.begin());
        bodies_[i] = body;
    } else {
        i = static_cast<uint32_t>(bodies_.size());
        bodies_.push_back(body);
    }
    return uint64_t{i} * 4;
}

void *HandleTable::reference(uint64_t handle, ObjectKind kind, NTSTATUS *status) {
    Locked l(lock_);
    uint64_t i = handle / 4;
    if (i >= bodies_.size() || bodies_[i] == nullptr) {
        *status = STATUS_INVALID_HANDLE;
        return nullptr;
    }
    ObjectHeader *h = object_header(bodies_[i]);
    if (kind != ObjectKind::Any && h->kind != kind) {
        *status = STATUS_OBJECT_TYPE_MISMATCH;
        return nullptr;
    }
    h->references++;
    *status = STATUS_SUCCESS;
    return bodies_[i];
}

NTSTATUS HandleTable::close(uint64_t handle, Process *owner) {
    void *body;
    {
        Locked l(lock_);
        uint64_t i = handle / 4;
        if (i >= bodies_.size() || bodies_[i] == nullptr) return STATUS_INVALID_HANDLE;
        body = bodies_[i];
        bodies_[i] = nullptr;
        free_.push_back(static_cast<uint32_t>(i));
    }
    ObjectHeader *h = object_header(body);
    bool last = --h->handles == 0;
    // Names of events and their like last as long as somebody has a handle.
    if (last && h->kind >= ObjectKind::Event && h->kind <= ObjectKind::Timer) name_space().remove_body(body);
    if (h->kind == ObjectKind::File && last && g_on_last_file_handle != nullptr) g_on_last_file_handle(body, owner);
    object_release(body);
    return STATUS_SUCCESS;
}

std::vector<uint64_t> HandleTable::list() {
    Locked l(lock_);
    std::vector<uint64_t> out;
    for (uint64_t i = 1; i < bodies_.size(); i++)
        if (bodies_[i] != nullptr) out.push_back(i * 4);
    return out;
}

// ---- names

NameSpace &name_space() {
    static NameSpace n;
    return n;
}

bool NameSpace::insert(const std::u16string &name, void *body) {
    Locked l(lock_);
    if (!objects_.emplace(lower(name), body).second) return false;
    object_reference(body);
    return true;
}

void *NameSpace::lookup(const std::u16string &name) {
    Locked l(lock_);
    auto it = objects_.find(lower(name));
    if (it == objects_.end()) return nullptr;
    object_reference(it->second);
    return it->second;
}

bool NameSpace::remove(const std::u16string &name) {
    void *body;
    {
        Locked l(lock_);
        auto it = objects_.find(lower(name));
        if (it == objects_.end()) return false;
        body = it->second;
        objects_.erase(it);
    }
    object_release(body);
    return true;
}

void NameSpace::remove_body(void *body) {
    bool found = false;
    {
        Locked l(lock_);
        found = std::erase_if(objects_, [&](auto &e) { return e.second == body; }) != 0;
    }
    if (found) object_release(body);
}

// \DosDevices\X, \??\X and \GLOBAL??\X are one directory.
static std::u16string dos_name(const std::u16string &name) {
    std::u16string n = lower(name);
    for (const char16_t *prefix : {u"\\dosdevices\\", u"\\global??\\", u"\\??\\"})
        if (n.rfind(prefix, 0) == 0) {
            n = n.substr(std::char_traits<char16_t>::length(prefix));
            if (n.rfind(u"global\\", 0) == 0) n = n.substr(7);
            return u"\\??\\" + n;
        }
    return n;
}

bool NameSpace::link(const std::u16string &name, const std::u16string &target) {
    Locked l(lock_);
    return links_.emplace(dos_name(name), lower(target)).second;
}

bool NameSpace::unlink(const std::u16string &name) {
    Locked l(lock_);
    return links_.erase(dos_name(name)) != 0;
}

void *NameSpace::resolve(std::u16string name, std::u16string *rest) {
    std::u16string n = dos_name(name);
    rest->clear();
    Locked l(lock_);
    for (int depth = 0; depth < 8; depth++) {
        // The longest prefix that ends at a backslash or at the end and is a link or an object.
        size_t end = n.size();
        for (;;) {
            std::u16string head = n.substr(0, end);
            if (auto it = links_.find(head); it != links_.end()) {
                n = it->second + n.substr(end);
                break;
            }
            if (auto it = objects_.find(head); it != objects_.end()) {
                *rest = n.substr(end);
                object_reference(it->second);
                return it->second;
            }
            size_t slash = n.rfind(u'\\', end - 1);
            if (slash == std::u16string::npos || slash == 0) return nullptr;
            end = slash;
        }
    }
    return nullptr;
}

std::vector<std::string> NameSpace::links() {
    Locked l(lock_);
    std::vector<std::string> out;
    for (auto &[name, target] : links_)
        out.push_back(narrow(name.data(), name.size()) + " -> " + narrow(target.data(), target.size()));
    return out;
}

}  // namespace nth
