// SPDX-License-Identifier: GPL-2.0-or-later
//
// msvcrt.dll: strings, character classes and number conversion, in the C locale.
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <cwctype>

#include "crt_state.h"
#include "heap.h"
#include "imports.h"

namespace nth {

using namespace nt;

namespace {

uint64_t NTAPI strlen_(const char *s) {
    return strlen(s);
}
uint64_t NTAPI strnlen_(const char *s, uint64_t n) {
    return strnlen(s, n);
}
int NTAPI strcmp_(const char *a, const char *b) {
    return strcmp(a, b);
}
int NTAPI strncmp_(const char *a, const char *b, uint64_t n) {
    return strncmp(a, b, n);
}
int NTAPI _stricmp(const char *a, const char *b) {
    return strcasecmp(a, b);
}
int NTAPI _strnicmp(const char *a, const char *b, uint64_t n) {
    return strncasecmp(a, b, n);
}
char *NTAPI strcpy_(char *d, const char *s) {
    return strcpy(d, s);
}
char *NTAPI strncpy_(char *d, const char *s, uint64_t n) {
    return strncpy(d, s, n);
}
char *NTAPI strcat_(char *d, const char *s) {
    return strcat(d, s);
}
char *NTAPI strncat_(char *d, const char *s, uint64_t n) {
    return strncat(d, s, n);
}
const char *NTAPI strchr_(const char *s, int c) {
    return strchr(s, c);
}
const char *NTAPI strrchr_(const char *s, int c) {
    return strrchr(s, c);
}
const char *NTAPI strstr_(const char *s, const char *t) {
    return strstr(s, t);
}
const char *NTAPI strpbrk_(const char *s, const char *t) {
    return strpbrk(s, t);
}
uint64_t NTAPI strspn_(const char *s, const char *t) {
    return strspn(s, t);
}
uint64_t NTAPI strcspn_(const char *s, const char *t) {
    return strcspn(s, t);
}
char *NTAPI strtok_(char *s, const char *d) {
    static thread_local char *save;
    return strtok_r(s, d, &save);
}
const void *NTAPI memchr_(const void *p, int c, uint64_t n) {
    return memchr(p, c, n);
}
char *NTAPI _strdup(const char *s) {
    uint64_t n = strlen(s) + 1;
    auto *p = static_cast<char *>(user_malloc(n));
    if (p != nullptr) memcpy(p, s, n);
    return p;
}
char *NTAPI strerror_(int e) {
    static thread_local char text[64];
    return strerror_r(e, text, sizeof text);
}
uint64_t NTAPI strxfrm_(char *d, const char *s, uint64_t n) {
    return strxfrm(d, s, n);
}
char *NTAPI _strlwr(char *s) {
    for (char *p = s; *p != 0; p++) *p = static_cast<char>(tolower(static_cast<unsigned char>(*p)));
    return s;
}

// ---- wide
uint64_t wlen(const char16_t *s) {
    uint64_t n = 0;
    while (s[n] != 0) n++;
    return n;
}
uint64_t NTAPI wcslen_(const char16_t *s) {
    return wlen(s);
}
int NTAPI wcscmp_(const char16_t *a, const char16_t *b) {
    while (*a != 0 && *a == *b) a++, b++;
    return int(*a) - int(*b);
}
int NTAPI wcsncmp_(const char16_t *a, const char16_t *b, uint64_t n) {
    for (; n > 0; n--, a++, b++)
        if (*a != *b || *a == 0) return int(*a) - int(*b);
    return 0;
}
int fold(char16_t c) {
    return c < 128 ? tolower(c) : c;
}
int NTAPI _wcsicmp(const char16_t *a, const char16_t *b) {
    while (*a != 0 && fold(*a) == fold(*b)) a++, b++;
    return fold(*a) - fold(*b);
}
int NTAPI _wcsnicmp(const char16_t *a, const char16_t *b, uint64_t n) {
    for (; n > 0; n--, a++, b++)
        if (fold(*a) != fold(*b) || *a == 0) return fold(*a) - fold(*b);
    return 0;
}
char16_t *NTAPI wcscpy_(char16_t *d, const char16_t *s) {
    memcpy(d, s, wlen(s) * 2 + 2);
    return d;
}
char16_t *NTAPI wcsncpy_(char16_t *d, const char16_t *s, uint64_t n) {
    uint64_t i = 0;
    for (; i < n && s[i] != 0; i++) d[i] = s[i];
    for (; i < n; i++) d[i] = 0;
    return d;
}
char16_t *NTAPI wcscat_(char16_t *d, const char16_t *s) {
    wcscpy_(d + wlen(d), s);
    return d;
}
const char16_t *NTAPI wcschr_(const char16_t *s, char16_t c) {
    for (;; s++) {
        if (*s == c) return s;
        if (*s == 0) return nullptr;
    }
}
const char16_t *NTAPI wcsrchr_(const char16_t *s, char16_t c) {
    const char16_t *found = nullptr;
    for (;; s++) {
        if (*s == c) found = s;
        if (*s == 0) return found;
    }
}
const char16_t *NTAPI wcsstr_(const char16_t *s, const char16_t *t) {
    uint64_t n = wlen(t);
    for (; *s != 0 || n == 0; s++)
        if (wcsncmp_(s, t, n) == 0) return s;
    return nullptr;
}
uint64_t NTAPI wcsxfrm_(char16_t *d, const char16_t *s, uint64_t n) {
    uint64_t len = wlen(s);
    if (n > 0) {
        uint64_t k = len < n - 1 ? len : n - 1;
        memcpy(d, s, k * 2);
        d[k] = 0;
    }
    return len;
}
char16_t *NTAPI _wcsdup(const char16_t *s) {
    uint64_t n = wlen(s) * 2 + 2;
    auto *p = static_cast<char16_t *>(user_malloc(n));
    if (p != nullptr) memcpy(p, s, n);
    return p;
}
uint64_t NTAPI wcsftime_(char16_t *, uint64_t, const char16_t *, const void *) {
    return 0;
}
uint64_t NTAPI mbstowcs_(char16_t *d, const char *s, uint64_t n) {
    std::u16string w = widen(s);
    if (d == nullptr) return w.size();
    uint64_t k = w.size() < n ? w.size() + 1 : n;
    memcpy(d, w.c_str(), k * 2);
    return w.size() < n ? w.size() : n;
}
uint64_t NTAPI wcstombs_(char *d, const char16_t *s, uint64_t n) {
    std::string t = narrow(s, wlen(s));
    if (d == nullptr) return t.size();
    uint64_t k = t.size() < n ? t.size() + 1 : n;
    memcpy(d, t.c_str(), k);
    return t.size() < n ? t.size() : n;
}

// ---- classes
#define CLASS(name)                               \
    int NTAPI name##_(int c) {                    \
        return c >= 0 && c < 256 ? (name)(c) : 0; \
    }
CLASS(isalpha)
CLASS(isdigit)
CLASS(isalnum)
CLASS(isspace)
CLASS(isupper)
CLASS(islower) CLASS(isprint) CLASS(ispunct) CLASS(isxdigit) CLASS(iscntrl) CLASS(isgraph) int NTAPI tolower_(int c) {
    return tolower(c);
}
int NTAPI toupper_(int c) {
    return toupper(c);
}
int NTAPI towlower_(int c) {
    return c < 128 ? tolower(c) : c;
}
int NTAPI towupper_(int c) {
    return c < 128 ? toupper(c) : c;
}
// _UPPER 1, _LOWER 2, _DIGIT 4, _SPACE 8, _PUNCT 16, _CONTROL 32, _BLANK 64, _HEX 128, _ALPHA 0x100 | upper | lower
int NTAPI iswctype_(uint16_t c, uint16_t mask) {
    if (c >= 256) return (mask & 0x100) != 0;
    int bits = (isupper(c) ? 1 : 0) | (islower(c) ? 2 : 0) | (isdigit(c) ? 4 : 0) | (isspace(c) ? 8 : 0) |
               (ispunct(c) ? 16 : 0) | (iscntrl(c) ? 32 : 0) | (c == ' ' || c == '\t' ? 64 : 0) |
               (isxdigit(c) ? 128 : 0) | (isalpha(c) ? 0x100 : 0);
    return bits & mask;
}

// ---- numbers. long is 32 bits.
template <class T>
T clamp(long long v, T low, T high) {
    if (v < low || v > high) current()->crt_errno = ERANGE;
    return v < low ? low : v > high ? high : static_cast<T>(v);
}
int NTAPI atoi_(const char *s) {
    return static_cast<int>(strtol(s, nullptr, 10));
}
int64_t NTAPI _atoi64(const char *s) {
    return strtoll(s, nullptr, 10);
}
double NTAPI atof_(const char *s) {
    return strtod(s, nullptr);
}
LONG NTAPI strtol_(const char *s, char **end, int base) {
    return clamp<LONG>(strtoll(s, end, base), INT32_MIN, INT32_MAX);
}
ULONG NTAPI strtoul_(const char *s, char **end, int base) {
    errno = 0;
    unsigned long long v = strtoull(s, end, base);
    if (errno == ERANGE || (v > UINT32_MAX && -v > UINT32_MAX)) {
        current()->crt_errno = ERANGE;
        return UINT32_MAX;
    }
    return static_cast<ULONG>(v);
}
int64_t NTAPI _strtoi64(const char *s, char **end, int base) {
    errno = 0;
    int64_t v = strtoll(s, end, base);
    if (errno != 0) crt_set_errno(errno);
    return v;
}
uint64_t NTAPI _strtoui64(const char *s, char **end, int base) {
    errno = 0;
    uint64_t v = strtoull(s, end, base);
    if (errno != 0) crt_set_errno(errno);
    return v;
}
double NTAPI strtod_(const char *s, char **end) {
    errno = 0;
    double v = strtod(s, end);
    if (errno != 0) crt_set_errno(errno);
    return v;
}
char *digits(uint64_t v, char *out, unsigned radix) {
    char t[72];
    int n = 0;
    do t[n++] = "0123456789abcdefghijklmnopqrstuvwxyz"[v % radix];
    while ((v /= radix) != 0);
    char *o = out;
    while (n > 0) *o++ = t[--n];
    *o = 0;
    return out;
}
char *NTAPI _ultoa(ULONG v, char *out, int radix) {
    return digits(v, out, static_cast<unsigned>(radix));
}
char *NTAPI _ui64toa(uint64_t v, char *out, int radix) {
    return digits(v, out, static_cast<unsigned>(radix));
}
char *NTAPI _i64toa(int64_t v, char *out, int radix) {
    if (v < 0 && radix == 10) {
        *out = '-';
        digits(-static_cast<uint64_t>(v), out + 1, 10);
        return out;
    }
    return digits(static_cast<uint64_t>(v), out, static_cast<unsigned>(radix));
}
char *NTAPI _itoa(int v, char *out, int radix) {
    return radix == 10 ? _i64toa(v, out, 10) : digits(uint32_t(v), out, radix);
}

const Import imports[] = {
    FN_AS("strlen", strlen_),
    FN_AS("strnlen", strnlen_),
    FN_AS("strcmp", strcmp_),
    FN_AS("strncmp", strncmp_),
    FN(_stricmp),
    FN(_strnicmp),
    FN_AS("strcoll", strcmp_),
    FN_AS("strcpy", strcpy_),
    FN_AS("strncpy", strncpy_),
    FN_AS("strcat", strcat_),
    FN_AS("strncat", strncat_),
    FN_AS("strchr", strchr_),
    FN_AS("strrchr", strrchr_),
    FN_AS("strstr", strstr_),
    FN_AS("strpbrk", strpbrk_),
    FN_AS("strspn", strspn_),
    FN_AS("strcspn", strcspn_),
    FN_AS("strtok", strtok_),
    FN_AS("memchr", memchr_),
    FN(_strdup),
    FN_AS("strerror", strerror_),
    FN_AS("strxfrm", strxfrm_),
    FN(_strlwr),
    FN_AS("wcslen", wcslen_),
    FN_AS("wcscmp", wcscmp_),
    FN_AS("wcscoll", wcscmp_),
    FN_AS("wcsncmp", wcsncmp_),
    FN(_wcsicmp),
    FN(_wcsnicmp),
    FN_AS("wcscpy", wcscpy_),
    FN_AS("wcsncpy", wcsncpy_),
    FN_AS("wcscat", wcscat_),
    FN_AS("wcschr", wcschr_),
    FN_AS("wcsrchr", wcsrchr_),
    FN_AS("wcsstr", wcsstr_),
    FN_AS("wcsxfrm", wcsxfrm_),
    FN(_wcsdup),
    FN_AS("wcsftime", wcsftime_),
    FN_AS("mbstowcs", mbstowcs_),
    FN_AS("wcstombs", wcstombs_),
    FN_AS("isalpha", isalpha_),
    FN_AS("isdigit", isdigit_),
    FN_AS("isalnum", isalnum_),
    FN_AS("isspace", isspace_),
    FN_AS("isupper", isupper_),
    FN_AS("islower", islower_),
    FN_AS("isprint", isprint_),
    FN_AS("ispunct", ispunct_),
    FN_AS("isxdigit", isxdigit_),
    FN_AS("iscntrl", iscntrl_),
    FN_AS("isgraph", isgraph_),
    FN_AS("tolower", tolower_),
    FN_AS("toupper", toupper_),
    FN_AS("towlower", towlower_),
    FN_AS("towupper", towupper_),
    FN_AS("iswctype", iswctype_),
    FN_AS("atoi", atoi_),
    FN_AS("atol", atoi_),
    FN(_atoi64),
    FN_AS("atof", atof_),
    FN_AS("strtol", strtol_),
    FN_AS("strtoul", strtoul_),
    FN(_strtoi64),
    FN(_strtoui64),
    FN_AS("strtod", strtod_),
    FN(_ultoa),
    FN(_ui64toa),
    FN(_i64toa),
    FN(_itoa),
};
const ImportTable registered("msvcrt.dll", imports);

}  // namespace

}  // namespace nth
