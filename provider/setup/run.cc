// SPDX-License-Identifier: GPL-2.0-or-later
#include "run.h"

#include <algorithm>

#include "text.h"

namespace sanctl {

namespace {

std::wstring padded(std::wstring text, size_t width) {
    if (text.size() < width) text.append(width - text.size(), L' ');
    return text;
}
constexpr size_t name_width = 26, condition_width = 11;

bool wants_change(const std::vector<Item> &items, Change change) {
    for (const Item &item : items) {
        if (change == Change::Uninstall && item.removable) return true;
        if (change == Change::Install && (item.condition == Condition::Missing || item.condition == Condition::Different)) return true;
    }
    return false;
}

std::wstring describe(Step &step) {
    std::vector<Item> items;
    std::wstring text;
    if (Failure f = step.check(items)) return L"unknown: " + f.what + L": " + error_text(f.code);
    for (const Item &item : items) {
        if (!text.empty()) text += L"; ";
        text += item.name + L" " + text_of(item.condition);
    }
    return text;
}

void report(const Step &step, const Failure &failure) {
    say(stderr, L"sanctl: step \"" + step.name() + L"\" failed: " + failure.what + L": " + error_text(failure.code));
    say(stderr, L"  what to do: " + advice(failure.code));
}

// Returns whether everything is as it was before the run.
bool undo_all(std::vector<Step *> changed) {
    for (; !changed.empty(); changed.pop_back()) {
        Step &step = *changed.back();
        const Failure f = step.undo();
        if (!f) continue;
        say(stderr, L"sanctl: step \"" + step.name() + L"\" could not be undone: " + f.what + L": " + error_text(f.code));
        for (; !changed.empty(); changed.pop_back())
            say(stderr, L"  left: " + changed.back()->name() + L": " + describe(*changed.back()));
        say(stderr, L"  what to do: run \"sanctl install\" to complete it, or \"sanctl uninstall\" to remove what is left");
        return false;
    }
    return true;
}

void finish(const std::vector<Step *> &steps) {
    for (Step *step : steps)
        if (const Failure f = step->finish())
            say(stderr, L"sanctl: remark on step \"" + step->name() + L"\": " + f.what + L": " + error_text(f.code));
}

} // namespace

const wchar_t *text_of(Condition condition) {
    switch (condition) {
    case Condition::Installed: return L"installed";
    case Condition::Missing: return L"missing";
    case Condition::Different: return L"different";
    case Condition::NoDevice: return L"no NIC";
    }
    return L"";
}

Exit change(const Steps &steps, Change change, bool dry_run) {
    std::vector<Step *> order, changed;
    for (const auto &step : steps) order.push_back(step.get());
    if (change == Change::Uninstall) std::reverse(order.begin(), order.end());
    const wchar_t *done = change == Change::Install ? L"installed" : L"removed";

    for (Step *step : order) {
        std::vector<Item> items;
        Failure failure = step->check(items);
        const bool needed = !failure && wants_change(items, change);
        if (needed && !dry_run) {
            changed.push_back(step);
            failure = change == Change::Install ? step->install() : step->uninstall();
        }
        if (failure) {
            report(*step, failure);
            const bool anything = !changed.empty();
            if (undo_all(changed)) {
                finish(changed);
                say(stderr, anything ? L"sanctl: undone: this machine is as it was before" : L"sanctl: nothing was changed");
            }
            return Exit::Failed;
        }
        const std::wstring outcome = !needed ? L"unchanged" : dry_run ? std::wstring(L"would be ") + done : done;
        say(stdout, padded(step->name(), name_width) + outcome);
        if (dry_run && needed)
            for (const Item &item : items) say(stdout, L"    now: " + item.name + L" " + text_of(item.condition) + (item.detail.empty() ? L"" : L": ") + item.detail);
    }
    // Also steps that had nothing to change: an interrupted run may have left something aside.
    if (!dry_run) finish(order);
    return Exit::Ok;
}

Exit status(const Steps &steps, bool json) {
    std::vector<Item> items;
    for (const auto &step : steps)
        if (const Failure f = step->check(items)) {
            report(*step, f);
            return Exit::Failed;
        }
    bool all = true;
    for (const Item &item : items) all = all && (item.condition == Condition::Installed || item.condition == Condition::NoDevice);
    if (json) {
        std::string text = std::string("{\"installed\": ") + (all ? "true" : "false") + ", \"items\": [";
        for (const Item &item : items)
            text += std::string(&item == items.data() ? "" : ", ") + "{\"item\": " + json_string(item.name) + ", \"state\": " +
                    json_string(text_of(item.condition)) + ", \"detail\": " + json_string(item.detail) + "}";
        puts((text + "]}").c_str());
    } else {
        for (const Item &item : items)
            say(stdout, padded(item.name, name_width) + padded(text_of(item.condition), condition_width) + item.detail);
    }
    return all ? Exit::Ok : Exit::Missing;
}

} // namespace sanctl
