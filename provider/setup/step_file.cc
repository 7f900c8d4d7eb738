// SPDX-License-Identifier: GPL-2.0-or-later
//
// The provider's files. Every process with sockets has the DLL loaded: such a file cannot be overwritten or deleted, but renamed. So
// the new file comes under another name and takes the place in one rename; the old one is put aside until all has worked.
#include "product.h"
#include "step.h"

namespace sanctl {

namespace {

constexpr wchar_t aside_mark[] = L".old";
constexpr wchar_t new_mark[] = L".new";
constexpr unsigned most_aside = 16;

std::wstring directory_of(const std::wstring &path) { return path.substr(0, path.find_last_of(L"\\/")); }
std::wstring name_of(const std::wstring &path) { return path.substr(path.find_last_of(L"\\/") + 1); }

// Names of the form PATH.old, PATH.old1...
Failure find_marked(const std::wstring &path, const wchar_t *mark, std::vector<std::wstring> &found) {
    const std::wstring directory = directory_of(path);
    const DWORD error = files::find(directory, (name_of(path) + mark + L"*").c_str(), found);
    if (error) return {error, L"looking for " + path + mark};
    for (std::wstring &name : found) name = directory + L"\\" + name;
    return {};
}

Failure free_name(const std::wstring &path, const wchar_t *mark, std::wstring &name) {
    for (unsigned i = 0; i < most_aside; ++i) {
        name = path + mark + (i ? std::to_wstring(i) : L"");
        bool there = true;
        if (DWORD error = files::exists(name, there)) return {error, L"looking for " + name};
        if (!there) return {};
    }
    return {ERROR_FILE_EXISTS, L"looking for a free name beside " + path};
}

class FileStep : public Step {
  public:
    FileStep(std::wstring name, std::wstring source, std::wstring directory)
        : Step(std::move(name)), source_(std::move(source)), target_(directory + L"\\" + provider_file) {}

    Failure check(std::vector<Item> &items) override {
        Item item{name(), Condition::Missing, target_, false};
        bool there = false, source = false;
        std::vector<std::wstring> aside, half;
        if (Failure f = look(target_, there)) return f;
        if (Failure f = look(source_, source)) return f;
        if (Failure f = find_marked(target_, new_mark, half)) return f;
        if (Failure f = find_marked(target_, aside_mark, aside)) return f;
        item.removable = there || !half.empty();
        if (there) item.condition = Condition::Installed;
        if (there && source) {
            std::string a, b;
            if (DWORD error = files::read(target_, a)) return {error, L"reading " + target_};
            if (DWORD error = files::read(source_, b)) return {error, L"reading " + source_};
            if (a != b) item.condition = Condition::Different, item.detail += L": another version than " + source_;
        } else if (there) {
            item.detail += L" (not compared: there is no " + source_ + L")";
        }
        if (!half.empty()) item.condition = Condition::Different, item.detail += L"; left over: " + half[0];
        if (!aside.empty()) item.detail += L"; until Windows restarts: " + aside[0];
        items.push_back(item);
        return {};
    }

    Failure install() override {
        bool there = false;
        if (Failure f = look(target_, there)) return f;
        if (Failure f = free_name(target_, new_mark, new_)) return f;
        copied_ = true;
        if (DWORD error = files::copy(source_, new_)) return {error, L"copying " + source_ + L" to " + new_};
        if (there)
            if (Failure f = put_aside(target_, aside_)) return f;
        if (DWORD error = files::move(new_, target_)) return {error, L"moving " + new_ + L" to " + target_};
        placed_ = true;
        return {};
    }

    Failure uninstall() override {
        bool there = false;
        if (Failure f = look(target_, there)) return f;
        return there ? put_aside(target_, aside_) : Failure{};
    }

    Failure undo() override {
        if (placed_)
            if (Failure f = remove_file(target_)) return f;
        if (copied_)
            if (DWORD error = files::remove(new_)) return {error, L"removing " + new_};
        if (!aside_.empty())
            if (DWORD error = files::move(aside_, target_)) return {error, L"moving " + aside_ + L" back to " + target_};
        aside_.clear();
        placed_ = copied_ = false;
        return {};
    }

    Failure finish() override {
        std::vector<std::wstring> half; // an interrupted run's
        if (Failure f = find_marked(target_, new_mark, half)) return f;
        for (const std::wstring &name : half)
            if (DWORD error = files::remove(name)) return {error, L"removing " + name};
        return sweep_aside(target_, aside_);
    }

  private:
    static Failure look(const std::wstring &path, bool &there) {
        const DWORD error = files::exists(path, there);
        return error ? Failure{error, L"looking for " + path} : Failure{};
    }

    const std::wstring source_, target_;
    std::wstring new_;   // what the new file is called before it takes its place
    std::wstring aside_; // where this run has put what was there; empty: nowhere
    bool copied_ = false, placed_ = false;
};

} // namespace

std::unique_ptr<Step> file_step(std::wstring name, std::wstring source, std::wstring target_directory) {
    return std::make_unique<FileStep>(std::move(name), std::move(source), std::move(target_directory));
}

Failure put_aside(const std::wstring &path, std::wstring &aside) {
    std::wstring name;
    if (Failure f = free_name(path, aside_mark, name)) return f;
    if (DWORD error = files::move(path, name)) return {error, L"putting " + path + L" aside"};
    aside = name;
    return {};
}

Failure sweep_aside(const std::wstring &path, const std::wstring &mine) {
    std::vector<std::wstring> found;
    if (Failure f = find_marked(path, aside_mark, found)) return f;
    Failure first;
    for (const std::wstring &name : found) {
        DWORD error = files::remove(name);
        // Somebody has it open. An earlier run's has its restart booked already.
        if (files::in_use(error)) error = name == mine ? files::remove_at_restart(name) : 0;
        if (error && !first) first = {error, L"removing " + name};
    }
    return first;
}

Failure remove_file(const std::wstring &path) {
    DWORD error = files::remove(path);
    if (!files::in_use(error)) return error ? Failure{error, L"removing " + path} : Failure{};
    std::wstring aside;
    if (Failure f = put_aside(path, aside)) return f;
    error = files::remove_at_restart(aside);
    return error ? Failure{error, L"having " + aside + L" removed when Windows restarts"} : Failure{};
}

} // namespace sanctl
