// SPDX-License-Identifier: GPL-2.0-or-later
//
// step.h: installing and uninstalling are lists of steps that all work or all leave the machine as it was.
//
// A step owns one thing in Windows. check() looks and changes nothing. install() and uninstall() make the change, and remember what
// they found; when one fails half-way, or a later step fails, undo() puts back what they found. finish() is for what cannot be taken
// back (deleting a file that was put aside): it comes when nothing can fail any more, so its errors are only worth a remark.
// settle() ends every run, whatever came of it, and prepare() begins it: for Windows to notice what is there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "system.h"

namespace sanctl {

struct Failure {
    DWORD code = 0; // 0: none
    std::wstring what; // what was being done, with names
    explicit operator bool() const { return code != 0; }
};

enum class Condition { Installed, Missing, Different, NoDevice };
const wchar_t *text_of(Condition condition);

struct Item {
    std::wstring name;
    Condition condition = Condition::Missing;
    std::wstring detail;
    bool removable = false; // uninstall has something to do
};

class Step {
  public:
    explicit Step(std::wstring name) : name_(std::move(name)) {}
    virtual ~Step() = default;
    Step(const Step &) = delete;
    Step &operator=(const Step &) = delete;
    const std::wstring &name() const { return name_; }

    virtual Failure check(std::vector<Item> &items) = 0;
    virtual Failure install() = 0;
    virtual Failure uninstall() = 0;
    virtual Failure undo() = 0;
    virtual Failure finish() { return {}; }
    virtual Failure prepare() { return {}; }
    virtual Failure settle() { return {}; }

  private:
    std::wstring name_;
};
using Steps = std::vector<std::unique_ptr<Step>>;

// In the order of installing: driver, provider's files, entry under "TCP on SAN", Winsock catalog. The list must know the provider
// before the catalog does, because the switch looks at it when the catalog changes; nothing may name what is not there.
Steps make_steps(const std::wstring &source_directory);

std::unique_ptr<Step> driver_package_step(const std::wstring &source_directory);
std::unique_ptr<Step> driver_device_step(const std::wstring &source_directory);
std::unique_ptr<Step> file_step(std::wstring name, std::wstring source, std::wstring target_directory);
std::unique_ptr<Step> san_list_step();
std::unique_ptr<Step> catalog_step();

// A package's INF, as Windows keeps it.
struct Package {
    std::wstring name, path; // oemN.inf
    std::string content;
};
Failure find_our_packages(std::vector<Package> &packages);

// Puts `path` aside under a name of its own, also while it is in use, and says which. sweep_aside removes such files; of those in
// use, `mine` (may be empty) goes when Windows restarts.
Failure put_aside(const std::wstring &path, std::wstring &aside);
Failure sweep_aside(const std::wstring &path, const std::wstring &mine);
// Removes a file; one in use is put aside and goes when Windows restarts.
Failure remove_file(const std::wstring &path);

} // namespace sanctl
