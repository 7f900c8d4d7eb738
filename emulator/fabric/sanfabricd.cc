// SPDX-License-Identifier: GPL-2.0-or-later
// sanfabricd: the fabric manager. `sanfabricd --help` says how to run it; docs/fabric.md what it does.
#include <signal.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "manager.h"
#include "sanlab_version.h"

namespace {
volatile sig_atomic_t g_stop = 0;
}

int main(int argc, char **argv) {
    CLI::App app{"sanfabricd: joins snic devices into one fabric.\n"
                 "NICs connect to SOCKET; JSON commands, one a line, go to SOCKET.ctl."};
    std::string socket, secret_file, listen_at;
    std::vector<std::string> joins;
    bool quiet = false, with_parent = false;
    app.set_version_flag("--version", "sanfabricd " SANLAB_VERSION);
    app.add_option("socket", socket, "path of the UNIX socket to serve")->required();
    app.add_option("--trunk-listen", listen_at, "IP:PORT to take trunks from other hosts' managers at");
    app.add_option("--trunk-join", joins, "IP:PORT of another host's manager to join");
    app.add_option("--trunk-secret", secret_file, "file with the secret that both managers share, at least 16 bytes");
    app.add_flag("-q,--quiet", quiet, "log warnings and errors only");
    app.add_flag("--with-parent", with_parent, "stop when the process that started this one ends");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &e) {
        int code = app.exit(e);
        return code == 0 ? 0 : 2;
    }
    spdlog::set_default_logger(spdlog::stderr_logger_st("sanfabricd"));
    spdlog::set_pattern("%H:%M:%S.%e sanfabricd %l: %v");
    spdlog::set_level(quiet ? spdlog::level::warn : spdlog::level::info);
    if (with_parent) prctl(PR_SET_PDEATHSIG, SIGTERM);
    struct sigaction act = {};
    act.sa_handler = [](int) { g_stop = 1; };
    sigaction(SIGTERM, &act, nullptr);
    sigaction(SIGINT, &act, nullptr);
    signal(SIGPIPE, SIG_IGN);

    std::string error;
    auto manager = fabric::Manager::create(socket, &error);
    if (!manager) {
        std::fprintf(stderr, "sanfabricd: %s\n", error.c_str());
        return 2;
    }
    if (!listen_at.empty() || !joins.empty()) {
        std::ifstream in(secret_file, std::ios::binary);
        std::string secret((std::istreambuf_iterator<char>(in)), {});
        while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
        bool ok = true;
        if (!in) error = "a trunk needs --trunk-secret FILE; cannot read '" + secret_file + "'", ok = false;
        ok = ok && manager->set_secret(secret, &error) && (listen_at.empty() || manager->listen_trunk(listen_at, &error));
        for (const std::string &address : joins) ok = ok && manager->join_trunk(address, &error);
        if (!ok) {
            std::fprintf(stderr, "sanfabricd: %s\n", error.c_str());
            return 2;
        }
    }
    spdlog::info("serving {}", socket);
    while (!g_stop) manager->serve(1000);
    spdlog::info("stopping");
    return 0;
}
