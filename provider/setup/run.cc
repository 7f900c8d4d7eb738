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

// Returns whether there was nothing to remark.
bool each(const std::vector<Step *> &steps, Failure (Step::*what)()) {
    bool fine = true;
    for (Step *step : steps) {
        const Failure f = (step->*what)();
        fine = fine && !f;
        if (f)
            say(stderr, L"sanctl: remark on step \"" + step->name() + L"\": " + f.what + L": " + error_text(f.code));
    }
    return fine;
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

namespace {

Exit go_through(const std::vector<Step *> &order, Change change, bool dry_run) {
    const wchar_t *done = change == Change::Install ? L"installed" : L"removed";
    std::vector<Step *> changed;
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
            const bool undone = undo_all(changed), settled = each(order, &Step::settle);
            if (undone && changed.empty()) say(stderr, L"sanctl: nothing was changed");
            else if (undone && settled) say(stderr, L"sanctl: undone: this machine is as it was before");
            else if (undone) say(stderr, L"sanctl: undone, but for what the remark says");
            return Exit::Failed;
        }
        say(stdout, padded(step->name(), name_width) + (!needed ? L"unchanged" : dry_run ? std::wstring(L"would be ") + done : done));
        if (dry_run && needed)
            for (const Item &item : items)
                say(stdout, L"    now: " + item.name + L" " + text_of(item.condition) + (item.detail.empty() ? L"" : L": ") + item.detail);
    }
    // Also steps that had nothing to change: an interrupted run may have left something aside.
    if (!dry_run) {
        each(order, &Step::finish);
        each(order, &Step::settle);
    }
    return Exit::Ok;
}

} // namespace

Exit change(const Steps &steps, Change change, bool dry_run) {
    std::vector<Step *> order;
    for (const auto &step : steps) order.push_back(step.get());
    if (change == Change::Uninstall) std::reverse(order.begin(), order.end());
    if (!dry_run) each(order, &Step::prepare);
    return go_through(order, change, dry_run);
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
