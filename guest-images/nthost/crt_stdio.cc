// SPDX-License-Identifier: GPL-2.0-or-later
//
// msvcrt.dll: files, on the host's file system and with the host's stdio behind them. Text mode does not translate line
// ends: output is meant for Linux readers.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "crt_state.h"
#include "imports.h"

namespace nth {

using namespace nt;

namespace {

std::string host_path(const char *path) {
    std::string s = path;
    for (char &c : s)
        if (c == '\\') c = '/';
    return s;
}

std::string narrow_z(const char16_t *s) {
    size_t n = 0;
    while (s[n] != 0) n++;
    return narrow(s, n);
}

MsFile *NTAPI __iob_func() {
    return crt().iob;
}

FILE *host(MsFile *f) {
    return f != nullptr ? f->host : nullptr;
}

MsFile *adopt(FILE *h, bool write) {
    if (h == nullptr) {
        crt_set_errno(errno);
        return nullptr;
    }
    CrtState &c = crt();
    Locked l(c.lock);
    for (auto &f : c.iob) {
        if (f.host != nullptr) continue;
        f = MsFile{};
        f.host = h;
        f.file = fileno(h);
        f.flag = write ? 2 : 1;
        return &f;
    }
    fclose(h);
    current()->crt_errno = EMFILE;
    return nullptr;
}

std::string host_mode(const char *mode) {
    std::string m;
    for (; *mode != 0 && *mode != ','; mode++)
        if (strchr("rwa+", *mode) != nullptr) m += *mode;
    return m + "e";
}

MsFile *NTAPI fopen_(const char *path, const char *mode) {
    return adopt(fopen(host_path(path).c_str(), host_mode(mode).c_str()), mode[0] != 'r');
}
MsFile *NTAPI _wfopen(const char16_t *path, const char16_t *mode) {
    return fopen_(narrow_z(path).c_str(), narrow_z(mode).c_str());
}
MsFile *NTAPI _fdopen(int fd, const char *mode) {
    return adopt(fdopen(fd, host_mode(mode).c_str()), mode[0] != 'r');
}
MsFile *NTAPI freopen_(const char *path, const char *mode, MsFile *f) {
    FILE *h = freopen(host_path(path).c_str(), host_mode(mode).c_str(), f->host);
    return h != nullptr ? f : nullptr;
}
int NTAPI fclose_(MsFile *f) {
    FILE *h = host(f);
    if (h == nullptr) return -1;
    int r = (h == stdin || h == stdout || h == stderr) ? fflush(h) : fclose(h);
    f->host = nullptr;
    return r;
}
int NTAPI fflush_(MsFile *f) {
    if (f == nullptr) {
        crt_flush(current()->process);
        return 0;
    }
    return fflush(host(f));
}
uint64_t NTAPI fread_(void *p, uint64_t size, uint64_t n, MsFile *f) {
    return fread(p, size, n, host(f));
}
uint64_t NTAPI fwrite_(const void *p, uint64_t size, uint64_t n, MsFile *f) {
    return fwrite(p, size, n, host(f));
}
int NTAPI fputc_(int c, MsFile *f) {
    return fputc(c, host(f));
}
int NTAPI fputs_(const char *s, MsFile *f) {
    return fputs(s, host(f));
}
int NTAPI puts_(const char *s) {
    return puts(s);
}
int NTAPI putchar_(int c) {
    return putchar(c);
}
int NTAPI fgetc_(MsFile *f) {
    return fgetc(host(f));
}
int NTAPI getchar_() {
    return getchar();
}
char *NTAPI fgets_(char *s, int n, MsFile *f) {
    return fgets(s, n, host(f));
}
int NTAPI ungetc_(int c, MsFile *f) {
    return ungetc(c, host(f));
}
int NTAPI _flsbuf(int c, MsFile *f) {
    return fputc(c, host(f));
}
int NTAPI _filbuf(MsFile *f) {
    return fgetc(host(f));
}
uint16_t NTAPI getwc_(MsFile *f) {
    int c = fgetc(host(f));
    return c < 0 ? 0xffff : static_cast<uint16_t>(c);
}
uint16_t NTAPI putwc_(uint16_t c, MsFile *f) {
    char16_t w = c;
    fputs(narrow(&w, 1).c_str(), host(f));
    return c;
}
uint16_t NTAPI ungetwc_(uint16_t c, MsFile *f) {
    return static_cast<uint16_t>(ungetc(c, host(f)));
}
int NTAPI fseek_(MsFile *f, LONG offset, int whence) {
    return fseeko(host(f), offset, whence);
}
int NTAPI _fseeki64(MsFile *f, int64_t offset, int whence) {
    return fseeko(host(f), offset, whence);
}
LONG NTAPI ftell_(MsFile *f) {
    return static_cast<LONG>(ftello(host(f)));
}
int64_t NTAPI _ftelli64(MsFile *f) {
    return ftello(host(f));
}
int NTAPI fgetpos_(MsFile *f, int64_t *pos) {
    *pos = ftello(host(f));
    return *pos < 0 ? -1 : 0;
}
int NTAPI fsetpos_(MsFile *f, const int64_t *pos) {
    return fseeko(host(f), *pos, SEEK_SET);
}
void NTAPI rewind_(MsFile *f) {
    rewind(host(f));
}
int NTAPI feof_(MsFile *f) {
    return feof(host(f));
}
int NTAPI ferror_(MsFile *f) {
    return ferror(host(f));
}
void NTAPI clearerr_(MsFile *f) {
    clearerr(host(f));
}
int NTAPI setvbuf_(MsFile *f, char *, int mode, uint64_t size) {
    // 0 full, 0x40 line, 4 none. Buffers stay the host's: a program's own may be gone when the host writes it out.
    return setvbuf(host(f), nullptr, mode == 4 ? _IONBF : mode == 0x40 ? _IOLBF : _IOFBF, size);
}
void NTAPI setbuf_(MsFile *f, char *b) {
    setvbuf(host(f), nullptr, b != nullptr ? _IOFBF : _IONBF, 4096);
}
int NTAPI _fileno(MsFile *f) {
    return f->file;
}
int NTAPI remove_(const char *path) {
    int r = remove(host_path(path).c_str());
    return r == 0 ? 0 : crt_set_errno(errno);
}
int NTAPI rename_(const char *a, const char *b) {
    return rename(host_path(a).c_str(), host_path(b).c_str()) == 0 ? 0 : crt_set_errno(errno);
}
void NTAPI perror_(const char *s) {
    note("%s: error %d", s, current()->crt_errno);
}

// ---- printf
int emit(FILE *h, const std::string &s) {
    return fwrite(s.data(), 1, s.size(), h) == s.size() ? static_cast<int>(s.size()) : -1;
}
int NTAPI vfprintf_(MsFile *f, const char *format, __builtin_ms_va_list args) {
    return emit(host(f), format_ms(format, args));
}
int NTAPI vprintf_(const char *format, __builtin_ms_va_list args) {
    return emit(stdout, format_ms(format, args));
}
int NTAPI printf_(const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = emit(stdout, format_ms(format, args));
    __builtin_ms_va_end(args);
    return n;
}
int NTAPI fprintf_(MsFile *f, const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = emit(host(f), format_ms(format, args));
    __builtin_ms_va_end(args);
    return n;
}
int NTAPI vsprintf_(char *out, const char *format, __builtin_ms_va_list args) {
    std::string s = format_ms(format, args);
    memcpy(out, s.c_str(), s.size() + 1);
    return static_cast<int>(s.size());
}
int NTAPI sprintf_(char *out, const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = vsprintf_(out, format, args);
    __builtin_ms_va_end(args);
    return n;
}
// Not terminated when it does not fit, and then -1: msvcrt's way.
int NTAPI _vsnprintf(char *out, uint64_t size, const char *format, __builtin_ms_va_list args) {
    std::string s = format_ms(format, args);
    if (s.size() < size) {
        memcpy(out, s.c_str(), s.size() + 1);
        return static_cast<int>(s.size());
    }
    if (out == nullptr) return static_cast<int>(s.size());
    memcpy(out, s.c_str(), size);
    return s.size() == size ? static_cast<int>(size) : -1;
}
int NTAPI _snprintf(char *out, uint64_t size, const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = _vsnprintf(out, size, format, args);
    __builtin_ms_va_end(args);
    return n;
}
int NTAPI _vscprintf(const char *format, __builtin_ms_va_list args) {
    return static_cast<int>(format_ms(format, args).size());
}
int NTAPI _vsnwprintf(char16_t *out, uint64_t size, const char16_t *format, __builtin_ms_va_list args) {
    std::u16string s = widen(format_ms_wide(format, args));
    if (s.size() < size) {
        memcpy(out, s.c_str(), s.size() * 2 + 2);
        return static_cast<int>(s.size());
    }
    if (out != nullptr) memcpy(out, s.c_str(), size * 2);
    return -1;
}
int NTAPI _snwprintf(char16_t *out, uint64_t size, const char16_t *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = _vsnwprintf(out, size, format, args);
    __builtin_ms_va_end(args);
    return n;
}
int NTAPI vfwprintf_(MsFile *f, const char16_t *format, __builtin_ms_va_list args) {
    return emit(host(f), format_ms_wide(format, args));
}
int NTAPI fwprintf_(MsFile *f, const char16_t *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = emit(host(f), format_ms_wide(format, args));
    __builtin_ms_va_end(args);
    return n;
}
int NTAPI wprintf_(const char16_t *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = emit(stdout, format_ms_wide(format, args));
    __builtin_ms_va_end(args);
    return n;
}

// ---- scanf: arguments are pointers, so the host's sscanf does it with the pattern's lengths translated
int NTAPI sscanf_(const char *text, const char *format, ...) {
    std::string f;
    for (const char *p = format; *p != 0; p++) {
        if (strncmp(p, "I64", 3) == 0 && p > format) {
            f += "ll";
            p += 2;
        } else if (*p == 'l' && p[1] != 'l' && p[1] != 'f' && p[1] != 'g' && p[1] != 'e' && p > format &&
                   p[-1] != 'l') {
            continue;  // long is 32 bits
        } else {
            f += *p;
        }
    }
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    void *a[12];
    int wanted = 0;
    for (const char *p = format; *p != 0; p++)
        if (*p == '%') {
            if (p[1] == '%') p++;
            else if (p[1] != '*') wanted++;
        }
    for (int i = 0; i < 12; i++) a[i] = i < wanted ? __builtin_va_arg(args, void *) : nullptr;
    __builtin_ms_va_end(args);
    return sscanf(text, f.c_str(), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

// ---- low-level I/O
int host_flags(int f) {
    return (f & 3) | ((f & 0x100) ? O_CREAT : 0) | ((f & 0x200) ? O_TRUNC : 0) | ((f & 0x400) ? O_EXCL : 0) |
           ((f & 8) ? O_APPEND : 0) | O_CLOEXEC;
}
int NTAPI _open(const char *path, int flags, int) {
    int fd = open(host_path(path).c_str(), host_flags(flags), 0666);
    return fd >= 0 ? fd : crt_set_errno(errno);
}
int NTAPI _wopen(const char16_t *path, int flags, int mode) {
    return _open(narrow_z(path).c_str(), flags, mode);
}
int NTAPI _close(int fd) {
    return fd > 2 && close(fd) != 0 ? crt_set_errno(errno) : 0;
}
int NTAPI _read(int fd, void *p, unsigned n) {
    ssize_t r = read(fd, p, n);
    return r < 0 ? crt_set_errno(errno) : static_cast<int>(r);
}
int NTAPI _write(int fd, const void *p, unsigned n) {
    if (fd == 1) fflush(stdout);
    ssize_t r = write(fd, p, n);
    return r < 0 ? crt_set_errno(errno) : static_cast<int>(r);
}
int64_t NTAPI _lseeki64(int fd, int64_t offset, int whence) {
    return lseek(fd, offset, whence);
}
LONG NTAPI _lseek(int fd, LONG offset, int whence) {
    return static_cast<LONG>(lseek(fd, offset, whence));
}
int64_t NTAPI _telli64(int fd) {
    return lseek(fd, 0, SEEK_CUR);
}
int64_t NTAPI _filelengthi64(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? st.st_size : -1;
}
int NTAPI _isatty(int fd) {
    return isatty(fd);
}
int NTAPI _setmode(int, int) {
    return 0x8000;
}
int64_t NTAPI _get_osfhandle(int fd) {
    return fd <= 2 ? -10 - fd : -1;
}
int NTAPI _access(const char *path, int mode) {
    return access(host_path(path).c_str(), mode & 6) == 0 ? 0 : crt_set_errno(errno);
}
int NTAPI _unlink(const char *path) {
    return unlink(host_path(path).c_str()) == 0 ? 0 : crt_set_errno(errno);
}
int NTAPI _mkdir(const char *path) {
    return mkdir(host_path(path).c_str(), 0777) == 0 ? 0 : crt_set_errno(errno);
}
int NTAPI _wmkdir(const char16_t *path) {
    return _mkdir(narrow_z(path).c_str());
}
char *NTAPI _getcwd(char *out, int size) {
    return getcwd(out, size);
}
char16_t *NTAPI _wgetcwd(char16_t *out, int size) {
    char text[4096];
    if (getcwd(text, sizeof text) == nullptr) return nullptr;
    std::u16string w = widen(text);
    if (out == nullptr || w.size() >= static_cast<size_t>(size)) return nullptr;
    memcpy(out, w.c_str(), w.size() * 2 + 2);
    return out;
}

struct MsStat64 {  // _stat64
    uint32_t dev;
    uint16_t ino, mode;
    int16_t nlink, uid, gid;
    uint32_t rdev;
    int64_t size, atime, mtime, ctime;
};
static_assert(sizeof(MsStat64) == 56);

int fill_stat(int r, const struct stat &st, MsStat64 *out) {
    if (r != 0) return crt_set_errno(errno);
    *out = MsStat64{};
    out->mode = static_cast<uint16_t>((S_ISDIR(st.st_mode)    ? 0x4000
                                       : S_ISCHR(st.st_mode)  ? 0x2000
                                       : S_ISFIFO(st.st_mode) ? 0x1000
                                                              : 0x8000) |
                                      (st.st_mode & 0700));
    out->nlink = 1;
    out->size = st.st_size;
    out->atime = st.st_atime;
    out->mtime = st.st_mtime;
    out->ctime = st.st_ctime;
    return 0;
}
int NTAPI _stat64(const char *path, MsStat64 *out) {
    struct stat st;
    int r = stat(host_path(path).c_str(), &st);
    return fill_stat(r, st, out);
}
int NTAPI _wstat64(const char16_t *path, MsStat64 *out) {
    return _stat64(narrow_z(path).c_str(), out);
}
int NTAPI _fstat64(int fd, MsStat64 *out) {
    struct stat st;
    int r = fstat(fd, &st);
    return fill_stat(r, st, out);
}

const Import imports[] = {
    FN(__iob_func),
    FN_AS("fopen", fopen_),
    FN(_wfopen),
    FN(_fdopen),
    FN_AS("freopen", freopen_),
    FN_AS("fclose", fclose_),
    FN_AS("fflush", fflush_),
    FN_AS("fread", fread_),
    FN_AS("fwrite", fwrite_),
    FN_AS("fputc", fputc_),
    FN_AS("putc", fputc_),
    FN_AS("fputs", fputs_),
    FN_AS("puts", puts_),
    FN_AS("putchar", putchar_),
    FN_AS("fgetc", fgetc_),
    FN_AS("getc", fgetc_),
    FN_AS("getchar", getchar_),
    FN_AS("fgets", fgets_),
    FN_AS("ungetc", ungetc_),
    FN(_flsbuf),
    FN(_filbuf),
    FN_AS("getwc", getwc_),
    FN_AS("fgetwc", getwc_),
    FN_AS("putwc", putwc_),
    FN_AS("fputwc", putwc_),
    FN_AS("ungetwc", ungetwc_),
    FN_AS("fseek", fseek_),
    FN(_fseeki64),
    FN_AS("ftell", ftell_),
    FN(_ftelli64),
    FN_AS("fgetpos", fgetpos_),
    FN_AS("fsetpos", fsetpos_),
    FN_AS("rewind", rewind_),
    FN_AS("feof", feof_),
    FN_AS("ferror", ferror_),
    FN_AS("clearerr", clearerr_),
    FN_AS("setvbuf", setvbuf_),
    FN_AS("setbuf", setbuf_),
    FN(_fileno),
    FN_AS("remove", remove_),
    FN_AS("rename", rename_),
    FN_AS("perror", perror_),
    FN_AS("vfprintf", vfprintf_),
    FN_AS("vprintf", vprintf_),
    FN_AS("printf", printf_),
    FN_AS("fprintf", fprintf_),
    FN_AS("vsprintf", vsprintf_),
    FN_AS("sprintf", sprintf_),
    FN(_vsnprintf),
    FN_AS("vsnprintf", _vsnprintf),
    FN(_snprintf),
    FN(_vscprintf),
    FN(_vsnwprintf),
    FN(_snwprintf),
    FN_AS("vfwprintf", vfwprintf_),
    FN_AS("fwprintf", fwprintf_),
    FN_AS("wprintf", wprintf_),
    FN_AS("sscanf", sscanf_),
    FN(_open),
    FN(_wopen),
    FN(_close),
    FN(_read),
    FN(_write),
    FN(_lseeki64),
    FN(_lseek),
    FN(_telli64),
    FN(_filelengthi64),
    FN(_isatty),
    FN_AS("isatty", _isatty),
    FN(_setmode),
    FN(_get_osfhandle),
    FN(_access),
    FN(_unlink),
    FN(_mkdir),
    FN(_wmkdir),
    FN(_getcwd),
    FN(_wgetcwd),
    FN(_stat64),
    FN(_wstat64),
    FN(_fstat64),
};
const ImportTable registered("msvcrt.dll", imports);

}  // namespace

}  // namespace nth
