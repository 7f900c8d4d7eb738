// SPDX-License-Identifier: GPL-2.0-or-later
#include "kvm.h"

#include <fcntl.h>
#include <linux/kvm.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace lab {

namespace {

struct Handle {
    int fd = -1;
    ~Handle() {
        if (fd >= 0) close(fd);
    }
};

bool cpu_has_virtualization() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        if (line.rfind("flags", 0) != 0) continue;
        line += ' ';
        return line.find(" vmx ") != std::string::npos || line.find(" svm ") != std::string::npos;
    }
    return false;
}

}  // namespace

bool kvm_works(std::string *why) {
    auto no = [&](const std::string &text) {
        *why = text;
        return false;
    };
    if (!cpu_has_virtualization()) return no("the processor offers neither vmx nor svm");
    Handle kvm{open("/dev/kvm", O_RDWR | O_CLOEXEC)};
    if (kvm.fd < 0) return no(std::string("/dev/kvm: ") + std::strerror(errno));
    Handle vm{ioctl(kvm.fd, KVM_CREATE_VM, 0)};
    if (vm.fd < 0) return no(std::string("KVM_CREATE_VM: ") + std::strerror(errno));
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return no("no memory");
    std::memset(page, 0xF4, 4096);  // hlt
    kvm_userspace_memory_region region = {0, 0, 0x1000, 4096, reinterpret_cast<uint64_t>(page)};
    bool ok = false;
    std::string failed;
    Handle cpu;
    int size = ioctl(kvm.fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (ioctl(vm.fd, KVM_SET_USER_MEMORY_REGION, &region) < 0) failed = "KVM_SET_USER_MEMORY_REGION";
    else if ((cpu.fd = ioctl(vm.fd, KVM_CREATE_VCPU, 0)) < 0) failed = "KVM_CREATE_VCPU";
    else {
        void *shared = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, cpu.fd, 0);
        kvm_sregs s;
        kvm_regs r = {};
        if (shared == MAP_FAILED || ioctl(cpu.fd, KVM_GET_SREGS, &s) < 0) failed = "KVM_GET_SREGS";
        else {
            s.cs.base = 0;
            s.cs.selector = 0;
            r.rip = 0x1000;
            r.rflags = 2;
            if (ioctl(cpu.fd, KVM_SET_SREGS, &s) < 0 || ioctl(cpu.fd, KVM_SET_REGS, &r) < 0) failed = "KVM_SET_REGS";
            else if (ioctl(cpu.fd, KVM_RUN, 0) < 0) failed = "KVM_RUN";
            else ok = static_cast<kvm_run *>(shared)->exit_reason == KVM_EXIT_HLT;
        }
        if (shared != MAP_FAILED) munmap(shared, static_cast<size_t>(size));
    }
    if (!ok) *why = failed.empty() ? "a test guest did not run to its end" : failed + ": " + std::strerror(errno);
    munmap(page, 4096);
    return ok;
}

}  // namespace lab
