// SPDX-License-Identifier: GPL-2.0-or-later
// Hostile clients of sanfabricd: bytes on the NICs' socket and on the control socket.
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <spdlog/spdlog.h>

#include "input.h"
#include "manager.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const std::string path = "/tmp/sanlab-fuzz-" + std::to_string(getpid()) + ".sock";
    static std::unique_ptr<fabric::Manager> manager = [] {
        spdlog::set_level(spdlog::level::off);
        return fabric::Manager::create(path, nullptr);
    }();
    fuzz::require(manager != nullptr);
    fuzz::Input in(data, size);
    std::vector<fabric::Fd> nics, clients;
    for (int n = 0; n < 24 && !in.empty(); n++) {
        switch (in.take<uint8_t>() % 6) {
            case 0: nics.push_back(fabric::connect_unix(path, nullptr)); break;
            case 1: clients.push_back(fabric::connect_unix(path + ".ctl", nullptr)); break;
            case 2: {  // a message that is almost right
                fabric_ctl ctl = {};
                in.copy(&ctl, sizeof ctl);
                ctl.cookie = FABRIC_COOKIE;
                ctl.version = FABRIC_VERSION;
                ctl.type = static_cast<uint16_t>(1 + ctl.type % FABRIC_CTL_STATE);
                ctl.nic.nram %= 3;
                if (!nics.empty()) send(nics.back().get(), &ctl, sizeof ctl, MSG_NOSIGNAL | MSG_DONTWAIT);
                break;
            }
            case 3: {
                uint8_t bytes[512];
                size_t len = in.copy(bytes, in.take<uint16_t>() % sizeof bytes);
                if (!nics.empty()) send(nics.back().get(), bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
                break;
            }
            case 4: {
                char line[256];
                size_t len = in.copy(line, in.take<uint8_t>());
                if (!clients.empty()) send(clients.back().get(), line, len, MSG_NOSIGNAL | MSG_DONTWAIT);
                manager->control(std::string(line, len));
                break;
            }
            case 5:
                if (!nics.empty()) nics.pop_back();
                break;
        }
        manager->serve(0);
    }
    nics.clear();
    clients.clear();
    for (int i = 0; i < 8; i++) manager->serve(0);
    return 0;
}
