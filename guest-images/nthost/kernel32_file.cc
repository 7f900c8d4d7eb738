// SPDX-License-Identifier: GPL-2.0-or-later
//
// kernel32.dll: files. \\.\Name goes to the driver, everything else to the host's file system; the standard handles are
// the host's standard streams. --fail file makes calls that name a file of the host fail.
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "crt.h"
#include "imports.h"
#include "io.h"
#include "setup_state.h"
#include "user.h"
#include "verifier.h"

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

constexpr DWORD IO_DEVICE = 1117, NO_MORE_FILES = 18;

std::string host_path(std::string s) {
    for (char &c : s)
        if (c == '\\') c = '/';
    return s;
}
// Files in use may be renamed, but not deleted or replaced.
bool in_use(const std::string &path) {
    struct stat st;
    SetupState &s = setup_state();
    if (s.in_use.empty() || stat(path.c_str(), &st) != 0) return false;
    return s.in_use.contains({st.st_dev, st.st_ino});
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
    if (should_fail(Fail::File)) return fail(IO_DEVICE), INVALID_HANDLE;
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
    if (should_fail(Fail::File)) return fail(IO_DEVICE);
    std::string path = host_path(name);
    if (in_use(path)) return fail(ERROR_ACCESS_DENIED);
    return unlink(path.c_str()) == 0 ? 1 : fail(error_of(errno));
}
BOOL NTAPI DeleteFileW(const WCHAR *name) {
    return DeleteFileA(narrow_z(name).c_str());
}
DWORD NTAPI GetFileAttributesA(const char *name) {
    if (should_fail(Fail::File)) return fail(IO_DEVICE), 0xffffffff;
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
BOOL NTAPI MoveFileExW(const WCHAR *a, const WCHAR *b, DWORD flags) {
    constexpr DWORD REPLACE = 1, AT_RESTART = 4;
    if (should_fail(Fail::File)) return fail(IO_DEVICE);
    std::string from = host_path(narrow_z(a)), to = b != nullptr ? host_path(narrow_z(b)) : "";
    struct stat st;
    if (stat(from.c_str(), &st) != 0) return fail(error_of(errno));
    if ((flags & AT_RESTART) != 0 && to.empty()) {
        Locked l(setup_state().lock);
        setup_state().at_restart.push_back(from);
        return 1;
    }
    if ((flags & AT_RESTART) != 0 || to.empty()) return fail(ERROR_NOT_SUPPORTED);
    if (stat(to.c_str(), &st) == 0 && (flags & REPLACE) == 0) return fail(ERROR_ALREADY_EXISTS);
    if (in_use(to)) return fail(ERROR_ACCESS_DENIED);
    return rename(from.c_str(), to.c_str()) == 0 ? 1 : fail(error_of(errno));
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
    if (t.empty() || (t[0] != u'/' && t[0] != u'\\')) {
        char cwd[PATH_MAX];
        if (getcwd(cwd, sizeof cwd) != nullptr) t = widen(cwd) + u"/" + t;
    }
    if (size <= t.size()) return static_cast<DWORD>(t.size() + 1);
    memcpy(out, t.c_str(), t.size() * 2 + 2);
    if (part != nullptr) *part = out + t.find_last_of(u"/\\") + 1;
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

// ---- copying, searching, and where Windows is (--windows)
BOOL NTAPI CopyFileW(const WCHAR *a, const WCHAR *b, BOOL keep) {
    if (should_fail(Fail::File)) return fail(IO_DEVICE);
    std::string to = host_path(narrow_z(b));
    int in = open(host_path(narrow_z(a)).c_str(), O_RDONLY | O_CLOEXEC);
    if (in < 0) return fail(error_of(errno));
    HostFile source;
    source.fd = in;
    if (in_use(to)) return fail(32);  // sharing violation
    HostFile target;
    target.fd = open(to.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (keep ? O_EXCL : O_TRUNC), 0666);
    if (target.fd < 0) return fail(error_of(errno));
    char block[65536];
    ssize_t n;
    while ((n = read(source.fd, block, sizeof block)) > 0)
        if (write(target.fd, block, static_cast<size_t>(n)) != n) n = -2;
    if (n == 0) return 1;
    DWORD error = n == -2 ? DWORD{112} : error_of(errno);
    unlink(to.c_str());  // NT leaves no half a copy
    return fail(error);
}

struct FindData {
    DWORD attributes;
    uint64_t times[3];
    DWORD size_high, size_low, reserved[2];
    WCHAR name[260], short_name[14];
} __attribute__((packed));
static_assert(sizeof(FindData) == 592);
struct FileSearch {
    std::string directory;
    std::vector<std::string> names;
    size_t next = 0;
};
BOOL next_found(FileSearch &search, FindData *out) {
    if (search.next == search.names.size()) return fail(NO_MORE_FILES);
    const std::string &name = search.names[search.next++];
    memset(out, 0, sizeof *out);
    struct stat st;
    if (stat((search.directory + "/" + name).c_str(), &st) == 0) {
        out->attributes = S_ISDIR(st.st_mode) ? 0x10 : 0x80;
        out->size_low = static_cast<DWORD>(st.st_size);
        out->size_high = static_cast<DWORD>(static_cast<uint64_t>(st.st_size) >> 32);
    }
    std::u16string w = widen(name);
    memcpy(out->name, w.c_str(), std::min<size_t>(w.size(), 259) * 2);
    return 1;
}
uint64_t NTAPI FindFirstFileW(const WCHAR *pattern, FindData *out) {
    if (should_fail(Fail::File)) return fail(IO_DEVICE), INVALID_HANDLE;
    std::string path = host_path(narrow_z(pattern));
    size_t slash = path.rfind('/');
    auto search = std::make_unique<FileSearch>();
    search->directory = slash == std::string::npos ? "." : path.substr(0, slash);
    DIR *dir = opendir(search->directory.c_str());
    if (dir == nullptr) return fail(ERROR_PATH_NOT_FOUND), INVALID_HANDLE;
    std::string names = slash == std::string::npos ? path : path.substr(slash + 1);
    while (dirent *e = readdir(dir))
        if (fnmatch(names.c_str(), e->d_name, FNM_CASEFOLD) == 0) search->names.push_back(e->d_name);
    closedir(dir);
    std::sort(search->names.begin(), search->names.end());
    if (search->names.empty()) return fail(ERROR_FILE_NOT_FOUND), INVALID_HANDLE;
    next_found(*search, out);
    return reinterpret_cast<uint64_t>(search.release());
}
BOOL NTAPI FindNextFileW(FileSearch *search, FindData *out) {
    if (should_fail(Fail::File)) return fail(IO_DEVICE);
    return next_found(*search, out);
}
BOOL NTAPI FindClose(FileSearch *search) {
    delete search;
    return 1;
}

DWORD give_windows_path(const char *below, WCHAR *out, DWORD size) {
    if (setup_state().windows.empty()) return fail(ERROR_PATH_NOT_FOUND), 0;
    std::u16string w = widen(setup_state().windows + below);
    for (char16_t &c : w)
        if (c == u'/') c = u'\\';
    if (size <= w.size()) return static_cast<DWORD>(w.size() + 1);
    memcpy(out, w.c_str(), w.size() * 2 + 2);
    return static_cast<DWORD>(w.size());
}
DWORD NTAPI GetWindowsDirectoryW(WCHAR *out, DWORD size) {
    return give_windows_path("", out, size);
}
DWORD NTAPI GetSystemDirectoryW(WCHAR *out, DWORD size) {
    return give_windows_path("/System32", out, size);
}
DWORD NTAPI GetSystemWow64DirectoryW(WCHAR *out, DWORD size) {
    if (!setup_state().runs_32_bit) return fail(ERROR_CALL_NOT_IMPLEMENTED), 0;
    return give_windows_path("/SysWOW64", out, size);
}

const Import imports[] = {
    FN(CreateFileA),         FN(CreateFileW),      FN(DeviceIoControl),  FN(ReadFile),         FN(WriteFile),
    FN(GetOverlappedResult), FN(CancelIo),         FN(CancelIoEx),       FN(GetStdHandle),     FN(SetStdHandle),
    FN(GetFileType),         FN(GetFileSizeEx),    FN(GetFileSize),      FN(SetFilePointerEx), FN(SetFilePointer),
    FN(SetEndOfFile),        FN(FlushFileBuffers), FN(DeleteFileA),      FN(DeleteFileW),      FN(GetFileAttributesA),
    FN(GetFileAttributesW),  FN(CreateDirectoryA), FN(RemoveDirectoryW), FN(MoveFileExW),      FN(GetCurrentDirectoryA),
    FN(GetTempPathW),        FN(GetFullPathNameW), FN(WriteConsoleA),    FN(WriteConsoleW),
    FN(CopyFileW),           FN(FindFirstFileW),   FN(FindNextFileW),    FN(FindClose),        FN(GetSystemDirectoryW),
    FN(GetSystemWow64DirectoryW), FN_AS("GetSystemWindowsDirectoryW", GetWindowsDirectoryW), FN(GetWindowsDirectoryW),
};
const ImportTable registered("kernel32.dll", imports);

}  // namespace

}  // namespace nth
