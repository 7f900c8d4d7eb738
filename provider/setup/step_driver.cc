// SPDX-License-Identifier: GPL-2.0-or-later
//
// The driver: its package, which Windows keeps for NICs to come, and the driver of the NICs that are there. Where there is none, the
// package is all that is needed.
#include "product.h"
#include "step.h"

namespace sanctl {

Failure find_our_packages(std::vector<Package> &packages) {
    packages.clear();
    const std::wstring directory = files::windows_directory() + L"\\INF";
    std::vector<std::wstring> names;
    if (DWORD error = files::find(directory, L"oem*.inf", names)) return {error, L"looking for driver packages in " + directory};
    for (const std::wstring &name : names) {
        Package package{name, directory + L"\\" + name, {}};
        if (DWORD error = files::read(package.path, package.content)) return {error, L"reading " + package.path};
        std::string text;
        for (char c : package.content)
            if (c) text += c; // an INF may be UTF-16; what is looked for is ASCII
        if (text.find(driver_inf_mark) != std::string::npos) packages.push_back(package);
    }
    return {};
}

namespace {

class PackageStep : public Step {
  public:
    explicit PackageStep(const std::wstring &directory) : Step(L"driver package"), inf_(directory + L"\\" + driver_inf) {}

    Failure check(std::vector<Item> &items) override {
        Item item{name(), Condition::Missing, L"", false};
        std::vector<Package> packages;
        bool known = false;
        std::string content;
        if (Failure f = find_our_packages(packages)) return f;
        if (DWORD error = files::exists(inf_, known)) return {error, L"looking for " + inf_};
        if (known)
            if (DWORD error = files::read(inf_, content)) return {error, L"reading " + inf_};
        for (const Package &p : packages) {
            const bool match = !known || p.content == content;
            if (match || item.condition == Condition::Missing) item.detail = p.path;
            if (match) item.condition = Condition::Installed;
            else if (item.condition == Condition::Missing) item.condition = Condition::Different;
        }
        if (item.condition == Condition::Different) item.detail += L": another version than " + inf_;
        if (!packages.empty() && !known) item.detail += L" (not compared: there is no " + inf_ + L")";
        item.removable = !packages.empty();
        items.push_back(item);
        return {};
    }

    Failure install() override {
        if (Failure f = find_our_packages(before_)) return f;
        adding_ = true;
        std::wstring added;
        const DWORD error = driver::add_package(inf_, added);
        return error ? Failure{error, L"giving Windows the driver package " + inf_} : Failure{};
    }

    Failure uninstall() override {
        if (Failure f = find_our_packages(before_)) return f;
        for (const Package &p : before_) {
            if (DWORD error = driver::remove_package(p.name)) return {error, L"removing the driver package " + p.name};
            removed_.push_back(p);
        }
        return {};
    }

    Failure undo() override {
        if (adding_) {
            std::vector<Package> now;
            if (Failure f = find_our_packages(now)) return f;
            for (const Package &p : now) {
                bool was_there = false;
                for (const Package &b : before_) was_there = was_there || b.name == p.name;
                if (was_there) continue;
                if (DWORD error = driver::remove_package(p.name)) return {error, L"removing the driver package " + p.name};
            }
            adding_ = false;
        }
        for (; !removed_.empty(); removed_.pop_back()) {
            std::string content;
            DWORD error = files::read(inf_, content);
            if (!error && content != removed_.back().content) error = ERROR_FILE_NOT_FOUND;
            if (error) return {error, L"the driver package " + removed_.back().name + L" is removed, and its source is not at hand"};
            std::wstring added;
            error = driver::add_package(inf_, added);
            if (error) return {error, L"giving Windows the driver package " + inf_ + L" again"};
        }
        return {};
    }

  private:
    const std::wstring inf_;
    std::vector<Package> before_, removed_;
    bool adding_ = false;
};

class DeviceStep : public Step {
  public:
    explicit DeviceStep(const std::wstring &directory)
        : Step(L"driver of the NIC"), inf_(directory + L"\\" + driver_inf), source_(directory + L"\\" + driver_file),
          target_(files::system_directory() + L"\\drivers\\" + driver_file) {}

    Failure check(std::vector<Item> &items) override {
        Item item{name(), Condition::NoDevice, L"", false};
        State now;
        if (Failure f = look(now)) return f;
        item.removable = now.devices.bound || now.service || now.file;
        if (!now.devices.present) {
            item.detail = L"this machine has no NIC now; Windows gives it the driver when it appears";
        } else if (!item.removable) {
            item.condition = Condition::Missing;
            item.detail = L"there is a NIC without a driver";
        } else {
            item.condition = now.devices.bound == now.devices.present && now.service && now.file ? Condition::Installed : Condition::Different;
            item.detail = item.condition == Condition::Installed ? target_ : L"not every NIC has it, or its service or file is missing";
            bool known = false;
            if (DWORD error = files::exists(source_, known)) return {error, L"looking for " + source_};
            if (now.file && known) {
                std::string a, b;
                if (DWORD error = files::read(target_, a)) return {error, L"reading " + target_};
                if (DWORD error = files::read(source_, b)) return {error, L"reading " + source_};
                if (a != b) item.condition = Condition::Different, item.detail = target_ + L": another version than " + source_;
            }
        }
        items.push_back(item);
        return {};
    }

    Failure install() override {
        if (Failure f = look_before()) return f;
        if (!before_.devices.present) return {};
        // Windows overwrites it.
        if (before_.file)
            if (Failure f = put_aside(target_, aside_)) return f;
        bool restart = false;
        touched_ = true;
        if (DWORD error = driver::update_devices(hardware_id, inf_, restart)) return {error, L"installing the driver for the NIC from " + inf_};
        State now;
        if (Failure f = look(now)) return f;
        if (now.devices.bound < now.devices.present || !now.file)
            return {ERROR_GEN_FAILURE, L"Windows reported success, but a NIC is without this driver"};
        return {};
    }

    Failure uninstall() override {
        if (Failure f = look_before()) return f;
        if (before_.file)
            if (Failure f = put_aside(target_, aside_)) return f;
        if (before_.devices.bound) {
            rescan_ = touched_ = true;
            if (DWORD error = driver::remove_devices(hardware_id, driver_service)) return {error, L"removing the driver from the NIC"};
        }
        if (before_.service)
            if (DWORD error = driver::delete_service(driver_service)) return {error, L"removing the driver's service"};
        return {};
    }

    Failure undo() override {
        if (!known_) return {};
        State now;
        if (Failure f = look(now)) return f;
        if (now.devices.bound && !before_.devices.bound) {
            rescan_ = true;
            if (DWORD error = driver::remove_devices(hardware_id, driver_service)) return {error, L"removing the driver from the NIC"};
        }
        if (before_.devices.bound && touched_)
            if (Failure f = bind_again(now)) return f;
        if (Failure f = look(now)) return f;
        if (now.service && !before_.service)
            if (DWORD error = driver::delete_service(driver_service)) return {error, L"removing the driver's service"};
        if (!now.service && before_.service)
            if (DWORD error = driver::create_service(driver_service, driver_service_text, driver_image_path))
                return {error, L"creating the driver's service again"};
        if (now.file && (!before_.file || !aside_.empty()))
            if (Failure f = remove_file(target_)) return f;
        if (!aside_.empty())
            if (DWORD error = files::move(aside_, target_)) return {error, L"moving " + aside_ + L" back to " + target_};
        aside_.clear();
        return {};
    }

    Failure finish() override { return sweep_aside(target_, aside_); }

    // A NIC that a run has taken out, and could not bring back, is not lost.
    Failure prepare() override {
        driver::Devices devices;
        if (DWORD error = driver::find_devices(hardware_id, driver_service, devices)) return {error, L"looking for the NIC"};
        rescan_ = devices.present == 0;
        return settle();
    }
    // At the end of the run: then a package that is to go has gone, and the NIC does not get its driver from it again.
    Failure settle() override {
        if (!rescan_) return {};
        if (DWORD error = driver::rescan()) return {error, L"looking for devices again (the NIC shows after a restart)"};
        rescan_ = false;
        return {};
    }

  private:
    struct State {
        driver::Devices devices;
        bool service = false, file = false;
    };

    Failure look(State &state) {
        if (DWORD error = driver::find_devices(hardware_id, driver_service, state.devices)) return {error, L"looking for the NIC"};
        if (DWORD error = driver::service_exists(driver_service, state.service)) return {error, L"looking for the driver's service"};
        if (DWORD error = files::exists(target_, state.file)) return {error, L"looking for " + target_};
        return {};
    }
    Failure look_before() {
        if (Failure f = look(before_)) return f;
        // Which package the NIC had: another version than this one, if there is one, or this very one.
        std::vector<Package> packages;
        std::string content;
        bool known = false;
        if (Failure f = find_our_packages(packages)) return f;
        if (DWORD error = files::exists(inf_, known)) return {error, L"looking for " + inf_};
        if (known)
            if (DWORD error = files::read(inf_, content)) return {error, L"reading " + inf_};
        for (const Package &p : packages)
            if (former_inf_.empty() || p.content != content) former_inf_ = p.path;
        known_ = true;
        return {};
    }

    // Back to the package that the NIC had, if it had another one or has none now.
    Failure bind_again(const State &now) {
        if (now.devices.bound < before_.devices.bound && rescan_) {
            if (DWORD error = driver::rescan()) return {error, L"looking for the NIC again"};
            rescan_ = false;
        }
        bool restart = false;
        if (former_inf_.empty()) return {};
        const DWORD error = driver::update_devices(hardware_id, former_inf_, restart);
        return error ? Failure{error, L"giving the NIC its driver back from " + former_inf_} : Failure{};
    }

    const std::wstring inf_, source_, target_;
    State before_;
    std::wstring aside_, former_inf_;
    bool known_ = false, touched_ = false, rescan_ = false;
};

} // namespace

std::unique_ptr<Step> driver_package_step(const std::wstring &directory) { return std::make_unique<PackageStep>(directory); }
std::unique_ptr<Step> driver_device_step(const std::wstring &directory) { return std::make_unique<DeviceStep>(directory); }

} // namespace sanctl
