// SPDX-License-Identifier: GPL-2.0-or-later
#include "system.h"

namespace sanctl::registry {

namespace {

class Key {
  public:
    ~Key() {
        if (key_) RegCloseKey(key_);
    }
    Key() = default;
    Key(const Key &) = delete;
    Key &operator=(const Key &) = delete;
    DWORD open(const std::wstring &path, REGSAM access) {
        return static_cast<DWORD>(RegOpenKeyExW(HKEY_LOCAL_MACHINE, path.c_str(), 0, access, &key_));
    }
    HKEY get() const { return key_; }
    HKEY *put() { return &key_; }

  private:
    HKEY key_ = nullptr;
};

bool absent(DWORD error) { return error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND; }

} // namespace

DWORD key_info(const std::wstring &path, std::optional<KeyInfo> &info) {
    info.reset();
    Key key;
    DWORD error = key.open(path, KEY_READ | KEY_WOW64_64KEY);
    if (absent(error)) return 0;
    if (error) return error;
    wchar_t text[256] = {};
    DWORD length = ARRAYSIZE(text);
    KeyInfo found;
    error = static_cast<DWORD>(RegQueryInfoKeyW(key.get(), text, &length, nullptr, &found.subkeys, nullptr, nullptr, &found.values,
                                                nullptr, nullptr, nullptr, nullptr));
    if (error == ERROR_MORE_DATA) length = 0, error = 0; // a class longer than any of ours
    if (error) return error;
    found.key_class.assign(text, length);
    info = found;
    return 0;
}

DWORD create_key(const std::wstring &path, const wchar_t *key_class) {
    Key key;
    DWORD disposition = 0;
    return static_cast<DWORD>(RegCreateKeyExW(HKEY_LOCAL_MACHINE, path.c_str(), 0, const_cast<wchar_t *>(key_class),
                                              REG_OPTION_NON_VOLATILE, KEY_READ | KEY_WRITE | KEY_WOW64_64KEY, nullptr, key.put(),
                                              &disposition));
}

DWORD delete_key(const std::wstring &path) {
    return static_cast<DWORD>(RegDeleteKeyW(HKEY_LOCAL_MACHINE, path.c_str()));
}

DWORD read(const std::wstring &path, const wchar_t *name, View view, std::optional<Value> &value) {
    value.reset();
    Key key;
    DWORD error = key.open(path, KEY_READ | (view == View::Programs64 ? KEY_WOW64_64KEY : KEY_WOW64_32KEY));
    if (absent(error)) return 0;
    if (error) return error;
    Value found;
    DWORD size = 0;
    error = static_cast<DWORD>(RegQueryValueExW(key.get(), name, nullptr, &found.type, nullptr, &size));
    if (absent(error)) return 0;
    if (error) return error;
    found.data.resize(size + 2);
    size = static_cast<DWORD>(found.data.size());
    error = static_cast<DWORD>(RegQueryValueExW(key.get(), name, nullptr, &found.type, found.data.data(), &size));
    if (error) return error;
    found.data.resize(size);
    value = found;
    return 0;
}

DWORD write(const std::wstring &path, const wchar_t *name, const Value &value) {
    Key key;
    const DWORD error = key.open(path, KEY_WRITE | KEY_WOW64_64KEY);
    if (error) return error;
    return static_cast<DWORD>(
        RegSetValueExW(key.get(), name, 0, value.type, value.data.data(), static_cast<DWORD>(value.data.size())));
}

DWORD delete_value(const std::wstring &path, const wchar_t *name) {
    Key key;
    const DWORD error = key.open(path, KEY_WRITE | KEY_WOW64_64KEY);
    if (error) return absent(error) ? 0 : error;
    const DWORD result = static_cast<DWORD>(RegDeleteValueW(key.get(), name));
    return absent(result) ? 0 : result;
}

} // namespace sanctl::registry
