// SPDX-License-Identifier: GPL-2.0-or-later
//
// The provider in the Winsock catalogs: a hidden base provider, found by the switch and by nobody else, behind all that was there.
// There is one function that brings both catalogs from whatever they hold to a wanted state; installing, uninstalling and undoing
// only differ in what they want.
#include "product.h"
#include "step.h"

namespace sanctl {

namespace {

using catalog::Provider;
using catalog::View;

constexpr View views[] = {View::Programs64, View::Programs32};
constexpr unsigned programs64 = 0, programs32 = 1;
constexpr const wchar_t *view_names[] = {L"the Winsock catalog", L"the 32-bit Winsock catalog"};

struct State {
    std::vector<WSAPROTOCOL_INFOW> all;
    std::optional<Provider> ours;
};

bool is_ours(const WSAPROTOCOL_INFOW &entry) { return memcmp(&entry.ProviderId, &provider_id, sizeof provider_id) == 0; }

WSAPROTOCOL_INFOW wanted_entry() {
    WSAPROTOCOL_INFOW e = {};
    e.dwServiceFlags1 = XP1_GUARANTEED_DELIVERY | XP1_GUARANTEED_ORDER | XP1_MESSAGE_ORIENTED | XP1_GRACEFUL_CLOSE;
    e.dwProviderFlags = PFL_HIDDEN;
    e.ProviderId = provider_id;
    e.ProtocolChain.ChainLen = BASE_PROTOCOL;
    e.iVersion = 2;
    e.iAddressFamily = AF_INET;
    e.iMaxSockAddr = e.iMinSockAddr = sizeof(sockaddr_in);
    e.iSocketType = SOCK_STREAM;
    e.iProtocol = IPPROTO_TCP;
    e.iNetworkByteOrder = BIGENDIAN;
    e.iSecurityScheme = SECURITY_PROTOCOL_NONE;
    e.dwMessageSize = 0xffffffff;
    static_assert(sizeof protocol_text <= sizeof e.szProtocol);
    memcpy(e.szProtocol, protocol_text, sizeof protocol_text);
    return e;
}

// But for what Windows gives: the id, and the unused rest of the chain.
bool same(const WSAPROTOCOL_INFOW &a, const WSAPROTOCOL_INFOW &b) {
    return a.dwServiceFlags1 == b.dwServiceFlags1 && a.dwServiceFlags2 == b.dwServiceFlags2 && a.dwServiceFlags3 == b.dwServiceFlags3 &&
           a.dwServiceFlags4 == b.dwServiceFlags4 && a.dwProviderFlags == b.dwProviderFlags &&
           a.ProtocolChain.ChainLen == b.ProtocolChain.ChainLen && a.iVersion == b.iVersion && a.iAddressFamily == b.iAddressFamily &&
           a.iMaxSockAddr == b.iMaxSockAddr && a.iMinSockAddr == b.iMinSockAddr && a.iSocketType == b.iSocketType &&
           a.iProtocol == b.iProtocol && a.iProtocolMaxOffset == b.iProtocolMaxOffset && a.iNetworkByteOrder == b.iNetworkByteOrder &&
           a.iSecurityScheme == b.iSecurityScheme && a.dwMessageSize == b.dwMessageSize && wcscmp(a.szProtocol, b.szProtocol) == 0;
}

bool same(const Provider &a, const Provider &b) {
    if (_wcsicmp(a.path.c_str(), b.path.c_str()) != 0 || a.entries.size() != b.entries.size()) return false;
    for (size_t i = 0; i < a.entries.size(); ++i)
        if (!same(a.entries[i], b.entries[i])) return false;
    return true;
}

class CatalogStep : public Step {
  public:
    CatalogStep()
        : Step(L"Winsock catalog"), wanted_{provider_path, {wanted_entry()}}, count_(files::system32_bit_directory().empty() ? 1 : 2) {}

    Failure check(std::vector<Item> &items) override {
        for (unsigned v = 0; v < count_; ++v) {
            State now;
            if (Failure f = look(v, now)) return f;
            Item item{v == programs64 ? L"Winsock catalog" : L"Winsock catalog, 32-bit", Condition::Missing, provider_path, false};
            if (now.ours) {
                item.removable = true;
                item.condition = same(*now.ours, wanted_) ? Condition::Installed : Condition::Different;
                if (item.condition == Condition::Different) item.detail = L"the entry differs; it names " + now.ours->path;
            }
            items.push_back(item);
        }
        return {};
    }

    Failure install() override {
        State want[2];
        if (Failure f = look_before(want)) return f;
        for (unsigned v = 0; v < count_; ++v) {
            if (!want[v].ours) want[v].all.push_back(wanted_.entries[0]);
            want[v].ours = wanted_;
        }
        return bring_to(want);
    }

    Failure uninstall() override {
        State want[2];
        if (Failure f = look_before(want)) return f;
        for (State &w : want) w.ours.reset();
        return bring_to(want);
    }

    Failure undo() override { return known_ ? bring_to(before_) : Failure{}; }

  private:
    Failure look(unsigned v, State &state) {
        if (DWORD error = catalog::list(views[v], state.all)) return {error, std::wstring(L"listing ") + view_names[v]};
        state.ours.reset();
        for (const WSAPROTOCOL_INFOW &entry : state.all) {
            if (!is_ours(entry)) continue;
            if (!state.ours) state.ours.emplace();
            state.ours->entries.push_back(entry);
        }
        if (!state.ours) return {};
        const DWORD error = catalog::path_of(views[v], provider_id, state.ours->path);
        return error ? Failure{error, std::wstring(L"reading the provider's path in ") + view_names[v]} : Failure{};
    }
    Failure look_before(State (&want)[2]) {
        for (unsigned v = 0; v < count_; ++v)
            if (Failure f = look(v, before_[v])) return f;
        known_ = true;
        for (unsigned v = 0; v < count_; ++v) want[v] = before_[v];
        return {};
    }

    Failure remove(unsigned v) {
        const DWORD error = catalog::remove(views[v], provider_id);
        return error ? Failure{error, std::wstring(L"removing the provider from ") + view_names[v]} : Failure{};
    }

    Failure add(const State (&want)[2], const State (&now)[2]) {
        const bool add64 = want[programs64].ours && !now[programs64].ours;
        const bool add32 = want[programs32].ours && !now[programs32].ours;
        if (add32) {
            // Windows has no function for the 32-bit catalog alone: it goes into both, and out of the other.
            if (now[programs64].ours)
                if (Failure f = remove(programs64)) return f;
            const State &content = want[want[programs64].ours ? programs64 : programs32];
            if (DWORD error = catalog::install_both(provider_id, *content.ours)) return {error, L"installing the provider in both Winsock catalogs"};
            return want[programs64].ours ? Failure{} : remove(programs64);
        }
        if (!add64) return {};
        const DWORD error = catalog::install64(provider_id, *want[programs64].ours);
        return error ? Failure{error, L"installing the provider in the Winsock catalog"} : Failure{};
    }

    // The others in the order of `want`, ours where it has them, and at the end what is new since.
    Failure put_in_order(unsigned v, const State &want, const State &now) {
        std::vector<DWORD> order;
        size_t ours = 0;
        auto place = [&](const WSAPROTOCOL_INFOW &entry) {
            for (DWORD id : order)
                if (id == entry.dwCatalogEntryId) return;
            order.push_back(entry.dwCatalogEntryId);
        };
        for (const WSAPROTOCOL_INFOW &entry : want.all) {
            if (is_ours(entry)) {
                if (now.ours && ours < now.ours->entries.size()) place(now.ours->entries[ours++]);
                continue;
            }
            for (const WSAPROTOCOL_INFOW &present : now.all)
                if (present.dwCatalogEntryId == entry.dwCatalogEntryId) place(present);
        }
        for (const WSAPROTOCOL_INFOW &present : now.all) place(present);
        bool as_wanted = true;
        for (size_t i = 0; i < order.size(); ++i) as_wanted = as_wanted && order[i] == now.all[i].dwCatalogEntryId;
        if (as_wanted) return {};
        const DWORD error = catalog::write_order(views[v], order);
        return error ? Failure{error, std::wstring(L"writing the order of ") + view_names[v]} : Failure{};
    }

    Failure bring_to(const State (&want)[2]) {
        State now[2];
        for (unsigned v = 0; v < count_; ++v) {
            if (Failure f = look(v, now[v])) return f;
            if (!now[v].ours || want[v].ours) continue;
            if (Failure f = remove(v)) return f;
            now[v].ours.reset();
        }
        if (Failure f = add(want, now)) return f;
        for (unsigned v = 0; v < count_; ++v) {
            if (Failure f = look(v, now[v])) return f;
            if (now[v].ours.has_value() != want[v].ours.has_value())
                return {WSASYSCALLFAILURE, std::wstring(L"Windows reported success, but did not change ") + view_names[v]};
            if (want[v].ours && !same(*now[v].ours, *want[v].ours)) {
                if (DWORD error = catalog::update(views[v], provider_id, *want[v].ours))
                    return {error, std::wstring(L"changing the provider's entry in ") + view_names[v]};
                if (Failure f = look(v, now[v])) return f;
            }
            if (Failure f = put_in_order(v, want[v], now[v])) return f;
        }
        return {};
    }

    const Provider wanted_;
    const unsigned count_; // of catalogs
    State before_[2];
    bool known_ = false;
};

} // namespace

std::unique_ptr<Step> catalog_step() { return std::make_unique<CatalogStep>(); }

} // namespace sanctl
