// SPDX-License-Identifier: GPL-2.0-or-later
//
// Loading programs and DLLs into a process: search, imports, TLS, DllMain in order of dependency.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "imports.h"
#include "pe_image.h"
#include "process.h"

namespace nth {

using namespace nt;

LoaderOptions g_loader;

namespace {

struct TlsDirectory {
    uint64_t Start, End, Index, Callbacks;
    uint32_t ZeroFill, Characteristics;
};

using DllMain = BOOL NTAPI(uint64_t module, DWORD reason, uint64_t reserved);
using TlsCallback = void NTAPI(uint64_t module, DWORD reason, uint64_t reserved);

enum : DWORD { DETACH = 0, ATTACH = 1 };

// The loader lock: recursive, held around DllMain calls as in NT.
class LoaderLock {
  public:
    explicit LoaderLock(Process *p) : p_(p) {
        if (p->loader_owner == current()) {
            p->loader_depth++;
        } else {
            if (!p->loader_lock_.lock_unless([] { return current()->terminate.load() && !current()->exiting; }))
                check_termination();
            p->loader_owner = current();
            p->loader_depth = 1;
        }
    }
    ~LoaderLock() {
        if (--p_->loader_depth == 0) {
            p_->loader_owner = nullptr;
            p_->loader_lock_.unlock();
        }
    }

  private:
    Process *p_;
};

std::string base_name(const std::string &path) {
    size_t slash = path.find_last_of("/\\");
    return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool readable(const std::string &path) {
    return access(path.c_str(), R_OK) == 0;
}

std::string find_file(Process *p, const std::string &name) {
    std::string with = name.find('.', name.find_last_of("/\\") == std::string::npos ? 0 : name.find_last_of("/\\")) ==
                               std::string::npos
                           ? name + ".dll"
                           : name;
    std::replace(with.begin(), with.end(), '\\', '/');
    if (with.find('/') != std::string::npos) return readable(with) ? with : "";
    std::vector<std::string> directories;
    for (Image *i : p->images)
        if (!i->is_dll) directories.push_back(i->path.substr(0, i->path.size() - i->name.size()));
    for (auto &d : g_loader.search) directories.push_back(d + "/");
    directories.push_back("");
    for (auto &d : directories)
        for (auto &candidate : {with, lower(with)})
            if (readable(d + candidate)) return d + candidate;
    return "";
}

void add_tls_block(Thread *t, const Image &i) {
    auto *d = i.at<TlsDirectory>(i.tls_rva);
    uint64_t size = d->End - d->Start;
    auto block = std::make_unique<uint8_t[]>(size + d->ZeroFill + 16);
    memcpy(block.get(), reinterpret_cast<void *>(d->Start), size);
    if (t->tls_vector.empty()) {
        t->tls_vector.resize(TLS_SLOTS);
        t->gs->at(TEB_TLS_VECTOR) = reinterpret_cast<uint64_t>(t->tls_vector.data());
    }
    t->tls_vector[i.tls_index] = block.get();
    t->tls_blocks.push_back(std::move(block));
}

void tls_callbacks(const Image &i, DWORD reason) {
    if (i.tls_rva == 0) return;
    auto *list = reinterpret_cast<uint64_t *>(i.at<TlsDirectory>(i.tls_rva)->Callbacks);
    for (; list != nullptr && *list != 0; list++)
        call_pe(reinterpret_cast<TlsCallback *>(*list), i.base, reason, uint64_t{0});
}

bool call_entry(const Image &i, DWORD reason, uint64_t reserved) {
    tls_callbacks(i, reason);
    if (!i.is_dll || i.entry == 0) return true;
    return call_pe(reinterpret_cast<DllMain *>(i.entry), i.base, reason, reserved) != 0;
}

Image *load(Process *p, const std::string &name, bool is_program, ProgramMissing *missing,
            std::vector<std::string> &chain) {
    if (Image *i = find_module(p, name); i != nullptr && !is_program) {
        i->references++;
        return i;
    }
    std::string path = is_program ? name : find_file(p, name);
    if (path.empty()) {
        missing->error = "cannot find " + name;
        return nullptr;
    }
    Image *image = map_image(memory(), path, p, &missing->error);
    if (image == nullptr) return nullptr;
    if (image->subsystem == SUBSYSTEM_NATIVE || (is_program && image->is_dll)) {
        missing->error = path + (image->subsystem == SUBSYSTEM_NATIVE ? " is a driver" : " is a DLL") +
                         (is_program ? ", not a program" : ", not a DLL");
        return nullptr;
    }
    {
        Locked l(p->lock);
        p->images.push_back(image);  // for the search, and against cycles; moved behind its imports below
    }
    chain.push_back(image->name);
    bool ok = true;
    for (auto &module : imported_modules(*image)) {
        // A DLL that is nowhere: each of its names is listed as missing below.
        if (is_builtin_module(module) || (find_module(p, module) == nullptr && find_file(p, module).empty())) continue;
        ok = load(p, module, false, missing, chain) != nullptr && ok;
    }
    chain.pop_back();
    if (!ok) return nullptr;
    bind_imports(
        *image,
        [&](const std::string &module, const std::string &symbol) -> uint64_t {
            if (is_builtin_module(module)) return reinterpret_cast<uint64_t>(find_import(module, symbol));
            Image *from = find_module(p, module);
            return from != nullptr ? find_export(*from, symbol) : 0;
        },
        &missing->imports);
    {
        Locked l(p->lock);
        std::erase(p->images, image);
        p->images.push_back(image);
    }
    if (image->tls_rva != 0) {
        size_t index = 0;
        while (index < p->static_tls.size() && p->static_tls[index]) index++;
        if (index >= TLS_SLOTS) host_bug("more than %u images with TLS", TLS_SLOTS);
        if (index == p->static_tls.size()) p->static_tls.push_back(true);
        p->static_tls[index] = true;
        image->tls_index = static_cast<int>(index);
        *reinterpret_cast<uint32_t *>(image->at<TlsDirectory>(image->tls_rva)->Index) = static_cast<uint32_t>(index);
    }
    protect_image(memory(), *image);
    return image;
}

}  // namespace

Image *find_module(Process *p, const std::string &name) {
    std::string want = lower(base_name(name));
    if (want.find('.') == std::string::npos) want += ".dll";
    Locked l(p->lock);
    for (Image *i : p->images)
        if (lower(i->name) == want) return i;
    return nullptr;
}

Image *load_module(Process *p, const std::string &name, bool is_program, ProgramMissing *missing) {
    if (is_program) {
        std::vector<std::string> chain;
        Image *i = load(p, name, true, missing, chain);
        return missing->imports.empty() ? i : nullptr;
    }
    LoaderLock lock(p);
    std::vector<std::string> chain;
    size_t before = p->images.size();
    Image *image = load(p, name, false, missing, chain);
    if (image == nullptr || !missing->imports.empty()) return nullptr;
    // What is new needs its TLS in the threads that exist, then its DllMain.
    for (size_t k = before; k < p->images.size(); k++) {
        Image *i = p->images[k];
        if (i->tls_rva == 0) continue;
        Locked l(p->lock);
        for (Thread *t : p->threads) add_tls_block(t, *i);
    }
    if (!attach_process(p)) {
        missing->error = "DllMain of " + name + " refused";
        return nullptr;
    }
    return image;
}

bool attach_process(Process *p) {
    LoaderLock lock(p);
    for (size_t k = 0; k < p->images.size(); k++) {
        Image *i = p->images[k];
        if (i->attached) continue;
        i->attached = true;
        if (!call_entry(*i, ATTACH, i->references == 1 ? 0 : 1)) return false;
    }
    return true;
}

bool unload_module(Process *p, Image *image) {
    LoaderLock lock(p);
    if (--image->references > 0) return true;
    if (image->attached) call_entry(*image, DETACH, 0);
    for (auto &module : imported_modules(*image))
        if (Image *i = find_module(p, module); i != nullptr && i != image) unload_module(p, i);
    {
        Locked l(p->lock);
        std::erase(p->images, image);
        if (image->tls_index >= 0) p->static_tls[image->tls_index] = false;
    }
    unmap_image(memory(), image);
    return true;
}

void notify_thread(Process *p, uint32_t reason) {
    LoaderLock lock(p);
    std::vector<Image *> list = p->images;
    if (reason == 3) std::reverse(list.begin(), list.end());
    for (Image *i : list)
        if (i->attached) call_entry(*i, reason, 0);
}

void detach_process(Process *p, bool terminating) {
    LoaderLock lock(p);
    std::vector<Image *> list = p->images;
    std::reverse(list.begin(), list.end());
    for (Image *i : list) {
        if (!i->attached) continue;
        i->attached = false;
        call_entry(*i, DETACH, terminating ? 1 : 0);
    }
}

void set_up_static_tls(Thread *t) {
    Locked l(t->process->lock);
    for (Image *i : t->process->images)
        if (i->tls_index >= 0) add_tls_block(t, *i);
}

}  // namespace nth
