// SPDX-License-Identifier: GPL-2.0-or-later
//
// The entry under "TCP on SAN": one REG_BINARY value with the 16 bytes of the provider's id. Keys that sanctl makes carry its name as
// their class, so that uninstalling removes those, when empty, and no others.
#include "product.h"
#include "step.h"

namespace sanctl {

namespace {

constexpr wchar_t our_class[] = L"sanctl";

std::wstring parent(const std::wstring &key) {
    const size_t slash = key.find_last_of(L'\\');
    return slash == std::wstring::npos ? std::wstring() : key.substr(0, slash);
}

Failure failed(DWORD error, const wchar_t *doing, const std::wstring &key) {
    return {error, std::wstring(doing) + L" HKLM\\" + key};
}

class SanListStep : public Step {
  public:
    SanListStep() : Step(L"TCP on SAN") {
        const auto *bytes = reinterpret_cast<const BYTE *>(&provider_id);
        wanted_.type = REG_BINARY;
        wanted_.data.assign(bytes, bytes + sizeof provider_id);
    }

    Failure check(std::vector<Item> &items) override {
        Item item{name(), Condition::Missing, L"HKLM\\" + key_ + L", value " + provider_value_name, false};
        std::optional<registry::Value> value, value32;
        if (Failure f = read(value)) return f;
        if (DWORD error = registry::read(key_, provider_value_name, registry::View::Programs32, value32))
            return failed(error, L"reading, as 32-bit programs do,", key_);
        if (value) item.condition = value == wanted_ ? Condition::Installed : Condition::Different;
        if (item.condition == Condition::Different) item.detail += L": another type or content";
        if (value != value32) item.condition = Condition::Different, item.detail += L": 32-bit programs see something else";
        std::vector<std::wstring> keys;
        if (Failure f = empty_keys_of_ours(value.has_value(), keys)) return f;
        item.removable = value.has_value() || !keys.empty();
        items.push_back(item);
        return {};
    }

    Failure install() override {
        if (Failure f = read(old_)) return f;
        std::vector<std::wstring> missing;
        for (std::wstring key = key_; !key.empty(); key = parent(key)) {
            std::optional<registry::KeyInfo> info;
            if (DWORD error = registry::key_info(key, info)) return failed(error, L"looking at", key);
            if (info) break;
            missing.push_back(key);
        }
        for (; !missing.empty(); missing.pop_back()) {
            if (DWORD error = registry::create_key(missing.back(), our_class)) return failed(error, L"creating", missing.back());
            created_.push_back(missing.back());
        }
        changed_ = true;
        const DWORD error = registry::write(key_, provider_value_name, wanted_);
        return error ? failed(error, L"writing the provider's id to", key_) : Failure{};
    }

    Failure uninstall() override {
        if (Failure f = read(old_)) return f;
        std::vector<std::wstring> keys;
        if (Failure f = empty_keys_of_ours(old_.has_value(), keys)) return f;
        if (old_) {
            changed_ = true;
            if (DWORD error = registry::delete_value(key_, provider_value_name))
                return failed(error, L"removing the provider's id from", key_);
        }
        for (const std::wstring &key : keys) {
            if (DWORD error = registry::delete_key(key)) return failed(error, L"removing", key);
            deleted_.push_back(key);
        }
        return {};
    }

    Failure undo() override {
        for (; !deleted_.empty(); deleted_.pop_back())
            if (DWORD error = registry::create_key(deleted_.back(), our_class)) return failed(error, L"creating again", deleted_.back());
        if (changed_) {
            const DWORD error = old_ ? registry::write(key_, provider_value_name, *old_) : registry::delete_value(key_, provider_value_name);
            if (error) return failed(error, L"restoring", key_);
            changed_ = false;
        }
        for (; !created_.empty(); created_.pop_back()) {
            std::optional<registry::KeyInfo> info;
            if (DWORD error = registry::key_info(created_.back(), info)) return failed(error, L"looking at", created_.back());
            if (!info || info->subkeys || info->values) continue; // somebody else uses it by now
            if (DWORD error = registry::delete_key(created_.back())) return failed(error, L"removing", created_.back());
        }
        return {};
    }

  private:
    Failure read(std::optional<registry::Value> &value) {
        const DWORD error = registry::read(key_, provider_value_name, registry::View::Programs64, value);
        return error ? failed(error, L"reading", key_) : Failure{};
    }

    // Keys with our mark that hold nothing but our value, if that is there, and one another: deepest first.
    Failure empty_keys_of_ours(bool with_value, std::vector<std::wstring> &keys) {
        DWORD values = with_value ? 1 : 0, subkeys = 0;
        for (std::wstring key = key_; !key.empty(); key = parent(key)) {
            std::optional<registry::KeyInfo> info;
            if (DWORD error = registry::key_info(key, info)) return failed(error, L"looking at", key);
            if (info && (info->key_class != our_class || info->values != values || info->subkeys != subkeys)) break;
            if (info) keys.push_back(key);
            values = 0;
            subkeys = info ? 1 : 0;
        }
        return {};
    }

    const std::wstring key_ = san_list_key;
    registry::Value wanted_;
    std::optional<registry::Value> old_;
    bool changed_ = false;
    std::vector<std::wstring> created_, deleted_; // by this run, in order
};

} // namespace

std::unique_ptr<Step> san_list_step() { return std::make_unique<SanListStep>(); }

} // namespace sanctl
