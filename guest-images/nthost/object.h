// SPDX-License-Identifier: GPL-2.0-or-later
//
// object.h: objects that have handles. As in NT an object is a body, whose address drivers get, behind a header with a
// type, a reference count and a handle count; both live in kernel memory.
//
// Contract: create() returns one reference. A handle holds one more. When the last handle of a file object is closed
// its on_last_handle hook runs (IRP_MJ_CLEANUP); when the last reference goes, destroy runs and the memory is freed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "base.h"
#include "nt_status.h"

namespace nth {

class Process;

enum class ObjectKind : uint32_t {
    Any,
    Event,
    Semaphore,
    Mutant,
    Timer,
    Thread,
    Process,
    File,
    Device,
    Driver,
    HostFile,
    Key,
    Symlink
};

struct ObjectHeader {
    static constexpr uint64_t MAGIC = 0x4a424f48544e6f62;
    uint64_t magic;
    ObjectKind kind;
    std::atomic<int32_t> references;
    std::atomic<int32_t> handles;
    uint32_t size;
    void (*destroy)(void *body);
    void *body() { return this + 1; }
};
static_assert(sizeof(ObjectHeader) % 16 == 0);

const char *object_kind_name(ObjectKind kind);

// Zeroed body. Null: no kernel memory.
void *object_allocate(ObjectKind kind, size_t body, void (*destroy)(void *));
ObjectHeader *object_header(void *body);  // bugcheck when it is not an object

template <class T>
T *object_create(ObjectKind kind) {
    void *body = object_allocate(kind, sizeof(T), [](void *b) { static_cast<T *>(b)->~T(); });
    return body != nullptr ? new (body) T : nullptr;
}

void object_reference(void *body);
void object_release(void *body);
ObjectKind object_kind(void *body);
template <class T>
struct ObjectRelease {
    void operator()(T *p) const { object_release(p); }
};
// Live objects by kind, for leak reports.
std::vector<std::string> live_objects();

// A process's handles: multiples of 4. Two bits below are ignored, as in NT.
class HandleTable {
  public:
    // Takes its own reference. `inherit`, access rights and auditing are not modelled.
    uint64_t insert(void *body);
    // Referenced body; null with status INVALID_HANDLE or OBJECT_TYPE_MISMATCH.
    void *reference(uint64_t handle, ObjectKind kind, nt::NTSTATUS *status);
    nt::NTSTATUS close(uint64_t handle, Process *owner);
    std::vector<uint64_t> list();

  private:
    FutexLock lock_;
    std::vector<void *> bodies_{nullptr};  // index = handle / 4; 0 is never used
    std::vector<uint32_t> free_;
};

// Called when the last handle of a file object is closed; set by the I/O manager.
extern void (*g_on_last_file_handle)(void *file, Process *process);
extern void (*g_on_file_handle_close)(void *file, Process *process);

// The object name space: \Device\X, \BaseNamedObjects\X, \??\X. Names compare without case.
class NameSpace {
  public:
    // Takes a reference. false: the name is taken.
    bool insert(const std::u16string &name, void *body);
    void *lookup(const std::u16string &name);  // referenced
    bool remove(const std::u16string &name);
    void remove_body(void *body);
    // Symbolic links.
    bool link(const std::u16string &name, const std::u16string &target);
    bool unlink(const std::u16string &name);
    // Follows links of \??\ and \DosDevices\ prefixes; returns the final name. `rest`: what follows the device's name.
    void *resolve(std::u16string name, std::u16string *rest);
    std::vector<std::string> links();

  private:
    FutexLock lock_;
    std::map<std::u16string, void *> objects_;
    std::map<std::u16string, std::u16string> links_;
};

NameSpace &name_space();

}  // namespace nth
