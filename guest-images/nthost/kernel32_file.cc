// SPDX-License-Identifier: GPL-2.0-or-later
//
// kernel32.dll: files. \\.\Name goes to the driver, everything else to the host's file system; the standard handles are
// the host's standard streams.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "crt.h"
#include "imports.h"
#include "io.h"
#include "user.h"

namespace nth {

using namespace nt;

namespace {

struct HostFile {
    int fd = -1;
    ~HostFile() {
        if (fd >= 0) close(fd);
    }
};

struct Overlapped {
    uint64_t status, information;  // Internal, InternalHigh
    uint32_t offset, offset_high;
    uint64_t event;
};

constexpr uint64_t STD_BASE = ~uint64_t{0} - 9;  // -10, -11, -12
int std_fd(uint64_t h) {
    uint64_t i = STD_BASE - h;
    return i <= 2 ? static_cast<int>(i) : -1;
}

DWORD error_of(int e) {
    switch (e) {
        case ENOENT: return ERROR_FILE_NOT_FOUND;
        case ENOTDIR: return ERROR_PATH_NOT_FOUND;
        case EACCES:
        case EPERM:
        case EISDIR: return ERROR_ACCESS_DENIED;
        case EEXIST: return ERROR_FILE_EXISTS;
        case ENOMEM: return ERROR_NOT_ENOUGH_MEMORY;
        case EBADF: return ERROR_INVALID_HANDLE;
        case ENOSPC: return 112;
        default: return 31;
    }
}

std::string host_path(std::string s) {
    for (char &c : s)
        if (c == '\\') c = '/';
    return s;
}

uint64_t open_device(const std::string &name, DWORD access, DWORD flags) {
    uint64_t handle = 0;
    NTSTATUS s = in_kernel([&] {
        return io_create_file(current()->process, u"\\??\\" + widen(name), (flags & 0x40000000) == 0, access, &handle);
    });
    if (nt_success(s)) return fail(0), handle;
    fail_status(s);
    return INVALID_HANDLE;
}

uint64_t create_file(const std::string &name, DWORD access, DWORD disposition, DWORD flags) {
    if (name.rfind("\\\\.\\", 0) == 0 || name.rfind("\\\\?\\", 0) == 0) {
        std::string rest = name.substr(4);
        if (rest.size() < 2 || rest[1] != ':') return open_device(rest, access, flags);
    }
    int how = (access & 0x40000000) ? ((access & 0x80000000) ? O_RDWR : O_WRONLY) : O_RDONLY;
    switch (disposition) {
        case 1: how |= O_CREAT | O_EXCL; break;
        case 2: how |= O_CREAT | O_TRUNC; break;
        case 4: how |= O_CREAT; break;
        case 5: how |= O_TRUNC; break;
        default: break;
    }
    int fd = open(host_path(name).c_str(), how | O_CLOEXEC, 0666);
    if (fd < 0) return fail(error_of(errno)), INVALID_HANDLE;
    auto *f = object_create<HostFile>(ObjectKind::HostFile);
    if (f == nullptr) return close(fd), fail(ERROR_NOT_ENOUGH_MEMORY), INVALID_HANDLE;
    f->fd = fd;
    uint64_t h = current()->process->handles.insert(f);
    object_release(f);
    fail(0);
    return h;
}

uint64_t NTAPI CreateFileA(const char *name, DWORD access, DWORD, void *, DWORD disposition, DWORD flags, HANDLE) {
    return create_file(name, access, disposition, flags);
}
uint64_t NTAPI CreateFileW(const WCHAR *name, DWORD access, DWORD, void *, DWORD disposition, DWORD flags, HANDLE) {
    return create_file(narrow_z(name), access, disposition, flags);
}

// ---- requests to the driver
BOOL driver_request(FILE_OBJECT *file, ControlRequest r, DWORD *returned, Overlapped *o) {
    std::unique_ptr<KEVENT, ObjectRelease<KEVENT>> event;
    bool synchronous = (file->Flags & FO_SYNCHRONOUS_IO) != 0;
    if (o != nullptr) {
        // The low bit of hEvent only keeps completion ports quiet.
        if ((o->event & ~uint64_t{1}) != 0) {
            event = user_object<KEVENT>(o->event & ~uint64_t{1}, ObjectKind::Event);
            if (!event) return 0;
        }
        o->status = static_cast<uint32_t>(STATUS_PENDING);
        o->information = 0;
        r.iosb = reinterpret_cast<uint64_t>(o);
        r.offset = static_cast<int64_t>(uint64_t{o->offset} | uint64_t{o->offset_high} << 32);
    } else if (!synchronous) {
        return fail(ERROR_INVALID_PARAMETER);
    }
    r.file = file;
    r.event = event.get();
    uint64_t information = 0;
    NTSTATUS s = in_kernel([&] { return io_control(r, &information); });
    if (s == STATUS_PENDING) return fail(ERROR_IO_PENDING);
    if (returned != nullptr) *returned = static_cast<DWORD>(information);
    if (nt_success(s)) return 1;
    return fail_status(s);
}

BOOL NTAPI DeviceIoControl(uint64_t h, DWORD code, uint64_t input, DWORD input_length, uint64_t output,
                           DWORD output_length, DWORD *returned, Overlapped *o) {
    auto file = user_object<FILE_OBJECT>(h, ObjectKind::File);
    if (!file) return 0;
    return driver_request(
        file.get(), {nullptr, IRP_MJ_DEVICE_CONTROL, code, input, input_length, output, output_length, 0, 0, nullptr},
        returned, o);
}

BOOL NTAPI ReadFile(uint64_t h, void *p, DWORD n, DWORD *done, Overlapped *o) {
    int fd = std_fd(h);
    if (fd < 0) {
        auto any = user_object<void>(h, ObjectKind::Any);
        if (!any) return 0;
        if (object_kind(any.get()) == ObjectKind::File)
            return driver_request(static_cast<FILE_OBJECT *>(any.get()),
                                  {nullptr, IRP_MJ_READ, 0, 0, 0, reinterpret_cast<uint64_t>(p), n, 0, 0, nullptr},
                                  done, o);
        if (object_kind(any.get()) != ObjectKind::HostFile) return fail(ERROR_INVALID_HANDLE);
        fd = static_cast<HostFile *>(any.get())->fd;
        ssize_t r = o != nullptr
                        ? pread(fd, p, n, static_cast<off_t>(uint64_t{o->offset} | uint64_t{o->offset_high} << 32))
                        : read(fd, p, n);
        if (r < 0) return fail(error_of(errno));
        if (done != nullptr) *done = static_cast<DWORD>(r);
        return 1;
    }
    ssize_t r = read(fd, p, n);
    if (r < 0) return fail(error_of(errno));
    if (done != nullptr) *done = static_cast<DWORD>(r);
    return 1;
}
BOOL NTAPI WriteFile(uint64_t h, const void *p, DWORD n, DWORD *done, Overlapped *o) {
    int fd = std_fd(h);
    if (fd == 1) fflush(stdout);
    if (fd < 0) {
        auto any = user_object<void>(h, ObjectKind::Any);
        if (!any) return 0;
        if (object_kind(any.get()) == ObjectKind::File)
            return driver_request(static_cast<FILE_OBJECT *>(any.get()),
                                  {nullptr, IRP_MJ_WRITE, 0, reinterpret_cast<uint64_t>(p), n, 0, 0, 0, 0, nullptr},
                                  done, o);
        if (object_kind(any.get()) != ObjectKind::HostFile) return fail(ERROR_INVALID_HANDLE);
        fd = static_cast<HostFile *>(any.get())->fd;
    }
    ssize_t r = write(fd, p, n);
    if (r < 0) return fail(error_of(errno));
    if (done != nullptr) *done = static_cast<DWORD>(r);
    return 1;
}

BOOL NTAPI GetOverlappedResult(uint64_t h, Overlapped *o, DWORD *done, BOOL wait) {
    auto status = [&] { return static_cast<NTSTATUS>(__atomic_load_n(&o->status, __ATOMIC_ACQUIRE)); };
    if (status() == STATUS_PENDING) {
        if (!wait) return fail(ERROR_IO_INCOMPLETE);
        uint64_t event = o->event & ~uint64_t{1};
        auto object = user_object<void>(event != 0 ? event : h, ObjectKind::Any);
        if (!object) return 0;
        DISPATCHER_HEADER *header = waitable(object.get());
        if (header == nullptr) return fail(ERROR_INVALID_HANDLE);
        while (status() == STATUS_PENDING)
            if (wait_for_one(header, ~uint64_t{0}, true) == STATUS_ALERTED) {
                object.reset();
                check_termination();
            }
    }
    *done = static_cast<DWORD>(o->information);
    return nt_success(status()) ? 1 : fail_status(status());
}
BOOL NTAPI CancelIo(uint64_t h) {
    auto file = user_object<FILE_OBJECT>(h, ObjectKind::File);
    if (!file) return 0;
    in_kernel([&] { return io_cancel(file.get(), current(), 0); });
    return 1;
}
BOOL NTAPI CancelIoEx(uint64_t h, Overlapped *o) {
    auto file = user_object<FILE_OBJECT>(h, ObjectKind::File);
    if (!file) return 0;
    unsigned n = in_kernel([&] { return io_cancel(file.get(), nullptr, reinterpret_cast<uint64_t>(o)); });
    return n != 0 ? 1 : fail(ERROR_NOT_FOUND);
}

// ---- host files
uint64_t NTAPI GetStdHandle(DWORD which) {
    DWORD i = 0xfffffff6 - which;  // -10, -11, -12
    return i <= 2 ? STD_BASE - i : INVALID_HANDLE;
}
BOOL NTAPI SetStdHandle(DWORD, uint64_t) {
    return 1;
}
DWORD NTAPI GetFileType(uint64_t h) {
    struct stat st;
    int fd = std_fd(h);
    if (fd >= 0 && fstat(fd, &st) == 0) return S_ISCHR(st.st_mode) ? 2 : S_ISFIFO(st.st_mode) ? 3 : 1;
    return user_object<HostFile>(h, ObjectKind::HostFile) ? 1 : 0;
}
BOOL NTAPI GetFileSizeEx(uint64_t h, int64_t *size) {
    auto f = user_object<HostFile>(h, ObjectKind::HostFile);
    struct stat st;
    if (!f || fstat(f->fd, &st) != 0) return 0;
    *size = st.st_size;
    return 1;
}
DWORD NTAPI GetFileSize(uint64_t h, DWORD *high) {
    int64_t n;
    if (!GetFileSizeEx(h, &n)) return 0xffffffff;
    if (high != nullptr) *high = static_cast<DWORD>(n >> 32);
    return static_cast<DWORD>(n);
}
BOOL NTAPI SetFilePointerEx(uint64_t h, int64_t offset, int64_t *now, DWORD whence) {
    auto f = user_object<HostFile>(h, ObjectKind::HostFile);
    if (!f) return 0;
    off_t at = lseek(f->fd, offset, static_cast<int>(whence));
    if (at < 0) return fail(error_of(errno));
    if (now != nullptr) *now = at;
    return 1;
}
DWORD NTAPI SetFilePointer(uint64_t h, LONG low, LONG *high, DWORD whence) {
    int64_t offset = high != nullptr ? int64_t{*high} << 32 | static_cast<uint32_t>(low) : low, now = 0;
    if (!SetFilePointerEx(h, offset, &now, whence)) return 0xffffffff;
    if (high != nullptr) *high = static_cast<LONG>(now >> 32);
    return static_cast<DWORD>(now);
}
BOOL NTAPI SetEndOfFile(uint64_t h) {
    auto f = user_object<HostFile>(h, ObjectKind::HostFile);
    return f && ftruncate(f->fd, lseek(f->fd, 0, SEEK_CUR)) == 0;
}
BOOL NTAPI FlushFileBuffers(uint64_t) {
    return 1;
}
BOOL NTAPI DeleteFileA(const char *name) {
    return unlink(host_path(name).c_str()) == 0 ? 1 : fail(error_of(errno));
}
BOOL NTAPI DeleteFileW(const WCHAR *name) {
    return DeleteFileA(narrow_z(name).c_str());
}
DWORD NTAPI GetFileAttributesA(const char *name) {
    struct stat st;
    if (stat(host_path(name).c_str(), &st) != 0) return fail(error_of(errno)), 0xffffffff;
    return S_ISDIR(st.st_mode) ? 0x10 : 0x80;
}
DWORD NTAPI GetFileAttributesW(const WCHAR *name) {
    return GetFileAttributesA(narrow_z(name).c_str());
}
BOOL NTAPI CreateDirectoryA(const char *name, void *) {
    return mkdir(host_path(name).c_str(), 0777) == 0 ? 1 : fail(error_of(errno));
}
BOOL NTAPI RemoveDirectoryW(const WCHAR *name) {
    return rmdir(host_path(narrow_z(name)).c_str()) == 0 ? 1 : fail(error_of(errno));
}
BOOL NTAPI MoveFileExW(const WCHAR *a, const WCHAR *b, DWORD) {
    return rename(host_path(narrow_z(a)).c_str(), host_path(narrow_z(b)).c_str()) == 0 ? 1 : fail(error_of(errno));
}
DWORD NTAPI GetCurrentDirectoryA(DWORD size, char *out) {
    char text[PATH_MAX];
    if (getcwd(text, sizeof text) == nullptr) return 0;
    auto n = static_cast<DWORD>(strlen(text));
    if (n >= size) return n + 1;
    memcpy(out, text, n + 1);
    return n;
}
DWORD NTAPI GetTempPathW(DWORD size, WCHAR *out) {
    std::u16string t = u"/tmp/";
    if (size <= t.size()) return static_cast<DWORD>(t.size() + 1);
    memcpy(out, t.c_str(), t.size() * 2 + 2);
    return static_cast<DWORD>(t.size());
}
DWORD NTAPI GetFullPathNameW(const WCHAR *name, DWORD size, WCHAR *out, WCHAR **part) {
    std::u16string t = name;
    if (t.empty() || t[0] != '/') {
        char cwd[PATH_MAX];
        if (getcwd(cwd, sizeof cwd) != nullptr) t = widen(cwd) + u"/" + t;
    }
    if (size <= t.size()) return static_cast<DWORD>(t.size() + 1);
    memcpy(out, t.c_str(), t.size() * 2 + 2);
    if (part != nullptr) *part = out + t.rfind(u'/') + 1;
    return static_cast<DWORD>(t.size());
}
BOOL NTAPI WriteConsoleA(uint64_t h, const void *p, DWORD n, DWORD *done, void *) {
    return WriteFile(h, p, n, done, nullptr);
}
BOOL NTAPI WriteConsoleW(uint64_t h, const WCHAR *p, DWORD n, DWORD *done, void *) {
    std::string s = narrow(p, n);
    DWORD x;
    BOOL ok = WriteFile(h, s.data(), static_cast<DWORD>(s.size()), &x, nullptr);
    if (done != nullptr) *done = n;
    return ok;
}

const Import imports[] = {
    FN(CreateFileA),         FN(CreateFileW),      FN(DeviceIoControl),  FN(ReadFile),         FN(WriteFile),
    FN(GetOverlappedResult), FN(CancelIo),         FN(CancelIoEx),       FN(GetStdHandle),     FN(SetStdHandle),
    FN(GetFileType),         FN(GetFileSizeEx),    FN(GetFileSize),      FN(SetFilePointerEx), FN(SetFilePointer),
    FN(SetEndOfFile),        FN(FlushFileBuffers), FN(DeleteFileA),      FN(DeleteFileW),      FN(GetFileAttributesA),
    FN(GetFileAttributesW),  FN(CreateDirectoryA), FN(RemoveDirectoryW), FN(MoveFileExW),      FN(GetCurrentDirectoryA),
    FN(GetTempPathW),        FN(GetFullPathNameW), FN(WriteConsoleA),    FN(WriteConsoleW),
};
const ImportTable registered("kernel32.dll", imports);

}  // namespace

}  // namespace nth
