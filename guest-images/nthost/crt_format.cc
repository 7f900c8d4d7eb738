// SPDX-License-Identifier: GPL-2.0-or-later
//
// printf as msvcrt.dll does it: Windows widths (long is 32 bits), I64 and I32, three-digit exponents, %p with 16
// digits.
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "base.h"
#include "crt.h"

namespace nth {

namespace {

struct Spec {
    std::string flags;
    int width = -1, precision = -1;
    enum { None, Char, Short, Long, Long64, Wide } length = None;
    bool short_text = false, long_text = false;
};

// An MS va_list is a pointer to 8-byte slots.
struct Slots {
    __builtin_ms_va_list &args;
    uint64_t next() { return __builtin_va_arg(args, uint64_t); }
};

std::string pattern(const Spec &s, const char *modifier, char conversion) {
    std::string p = "%" + s.flags;
    if (s.width >= 0) p += std::to_string(s.width);
    if (s.precision >= 0) p += "." + std::to_string(s.precision);
    return p + modifier + conversion;
}

template <class T>
std::string print(const std::string &p, T value) {
    char small[128];
    int n = snprintf(small, sizeof small, p.c_str(), value);
    if (n < static_cast<int>(sizeof small)) return std::string(small, n < 0 ? 0 : n);
    std::string big(n + 1, 0);
    snprintf(big.data(), big.size(), p.c_str(), value);
    big.resize(n);
    return big;
}

// e+05 becomes e+005.
std::string three_digit_exponent(std::string t) {
    size_t e = t.find_first_of("eE");
    if (e == std::string::npos || e + 3 >= t.size() || (t[e + 1] != '+' && t[e + 1] != '-')) return t;
    size_t digits = 0;
    while (e + 2 + digits < t.size() && isdigit(static_cast<unsigned char>(t[e + 2 + digits]))) digits++;
    if (digits == 2) {
        t.insert(e + 2, "0");
        if (t.size() > e + 5 && t.back() == ' ') t.pop_back();  // keeps the width when left-aligned
        else if (t[0] == ' ' && t.size() > 1) t.erase(0, 1);
    }
    return t;
}

std::string pad(std::string text, const Spec &s) {
    if (s.precision >= 0 && text.size() > static_cast<size_t>(s.precision)) text.resize(s.precision);
    if (s.width > 0 && text.size() < static_cast<size_t>(s.width)) {
        size_t n = s.width - text.size();
        if (s.flags.find('-') != std::string::npos) text.append(n, ' ');
        else text.insert(0, n, s.flags.find('0') != std::string::npos ? '0' : ' ');
    }
    return text;
}

std::string narrow_z(const char16_t *w, int precision) {
    size_t n = 0;
    while ((precision < 0 || n < static_cast<size_t>(precision)) && w[n] != 0) n++;
    return narrow(w, n);
}

std::string narrow_text(const char *t, int precision) {
    return std::string(t, precision < 0 ? strlen(t) : strnlen(t, precision));
}

const char *parse(const char *f, Spec &s, Slots &slots) {
    while (*f != 0 && strchr("-+ #0", *f) != nullptr) s.flags += *f++;
    auto number = [&](int &out) {
        if (*f == '*') {
            f++;
            out = static_cast<int>(slots.next());
            return;
        }
        out = 0;
        while (isdigit(static_cast<unsigned char>(*f))) out = out * 10 + (*f++ - '0');
    };
    if (*f == '*' || isdigit(static_cast<unsigned char>(*f))) {
        number(s.width);
        if (s.width < 0) {
            s.flags += '-';
            s.width = -s.width;
        }
    }
    if (*f == '.') {
        f++;
        number(s.precision);
    }
    for (;;) {
        if (strncmp(f, "I64", 3) == 0) {
            s.length = Spec::Long64;
            f += 3;
        } else if (strncmp(f, "I32", 3) == 0) {
            s.length = Spec::Long;
            f += 3;
        } else if (*f == 'I' || *f == 'z' || *f == 'j' || *f == 't') {
            s.length = Spec::Long64;
            f++;
        } else if (f[0] == 'l' && f[1] == 'l') {
            s.length = Spec::Long64;
            f += 2;
        } else if (*f == 'l' || *f == 'w') {
            s.length = Spec::Long;
            s.long_text = true;
            f++;
        } else if (*f == 'L') {
            f++;
        } else if (f[0] == 'h' && f[1] == 'h') {
            s.length = Spec::Char;
            f += 2;
        } else if (*f == 'h') {
            s.length = Spec::Short;
            s.short_text = true;
            f++;
        } else {
            return f;
        }
    }
}

std::string integer(const Spec &s, uint64_t v, char c) {
    bool is_signed = c == 'd' || c == 'i';
    switch (s.length) {
        case Spec::Char: v = is_signed ? uint64_t(int64_t(int8_t(v))) : uint8_t(v); break;
        case Spec::Short: v = is_signed ? uint64_t(int64_t(int16_t(v))) : uint16_t(v); break;
        case Spec::Long64: break;
        default: v = is_signed ? uint64_t(int64_t(int32_t(v))) : uint32_t(v); break;
    }
    return print(pattern(s, "ll", c), static_cast<long long>(v));
}

std::string format_any(const char *f, __builtin_ms_va_list args, bool wide_format) {
    Slots slots{args};
    std::string out;
    while (*f != 0) {
        if (*f != '%') {
            const char *e = strchrnul(f, '%');
            out.append(f, e);
            f = e;
            continue;
        }
        f++;
        if (*f == '%') {
            out += *f++;
            continue;
        }
        Spec s;
        f = parse(f, s, slots);
        char c = *f;
        if (c == 0) break;
        f++;
        switch (c) {
            case 'd':
            case 'i':
            case 'u':
            case 'x':
            case 'X':
            case 'o': out += integer(s, slots.next(), c); break;
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G':
            case 'a':
            case 'A': {
                uint64_t bits = slots.next();
                double v;
                memcpy(&v, &bits, 8);
                if (std::isnan(v) || std::isinf(v)) {
                    std::string t =
                        std::isnan(v) ? (std::signbit(v) ? "-1.#IND" : "1.#QNAN") : (v < 0 ? "-1.#INF" : "1.#INF");
                    Spec w = s;
                    w.precision = -1;
                    out += pad(t, w);
                    break;
                }
                std::string t = print(pattern(s, "", c), v);
                out += (c == 'f' || c == 'F' || c == 'a' || c == 'A') ? t : three_digit_exponent(t);
                break;
            }
            case 'p': {
                char t[20];
                snprintf(t, sizeof t, "%016llX", static_cast<unsigned long long>(slots.next()));
                Spec w = s;
                w.precision = -1;
                out += pad(t, w);
                break;
            }
            case 'c':
            case 'C': {
                bool wide = (c == 'C') != wide_format;
                if (s.long_text) wide = true;
                if (s.short_text) wide = false;
                uint64_t v = slots.next();
                char16_t w = static_cast<char16_t>(v);
                Spec p = s;
                p.precision = -1;
                out += pad(wide ? narrow(&w, 1) : std::string(1, static_cast<char>(v)), p);
                break;
            }
            case 's':
            case 'S': {
                bool wide = (c == 'S') != wide_format;
                if (s.long_text) wide = true;
                if (s.short_text) wide = false;
                uint64_t v = slots.next();
                std::string t = v == 0 ? "(null)"
                                : wide ? narrow_z(reinterpret_cast<const char16_t *>(v), s.precision)
                                       : narrow_text(reinterpret_cast<const char *>(v), s.precision);
                out += pad(t, s);
                break;
            }
            case 'Z': {  // ANSI_STRING or UNICODE_STRING (kernel)
                auto *u = reinterpret_cast<const nt::UNICODE_STRING *>(slots.next());
                std::string t = u == nullptr || u->Buffer == nullptr ? "(null)"
                                : s.long_text                        ? narrow(u->Buffer, u->Length / 2)
                                              : std::string(reinterpret_cast<const char *>(u->Buffer), u->Length);
                out += pad(t, s);
                break;
            }
            case 'n': slots.next(); break;  // refused, as by msvcrt's default
            default: out += c; break;
        }
    }
    return out;
}

}  // namespace

std::string format_ms(const char *format, __builtin_ms_va_list args) {
    return format_any(format, args, false);
}

std::string format_ms_wide(const char16_t *format, __builtin_ms_va_list args) {
    size_t n = 0;
    while (format[n] != 0) n++;
    return format_any(narrow(format, n).c_str(), args, true);
}

}  // namespace nth
