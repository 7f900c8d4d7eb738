// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab: boots guests with SAN NICs, runs RDMA traffic between them, and says how they are.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "interrupt.h"
#include "sanlab_version.h"
#include "state.h"

namespace {

// Where the arguments of the test program begin: behind `run [options] TEST`.
int end_of_options(int argc, char **argv, const CLI::App &run) {
    int i = 1;
    while (i < argc && argv[i][0] == '-') i++;
    if (i == argc || run.get_name() != argv[i]) return argc;
    for (i++; i < argc; i++) {
        const std::string argument = argv[i];
        if (argument.size() < 2 || argument[0] != '-') return i + 1;
        const CLI::Option *option = run.get_option_no_throw(argument);
        if (option && option->get_items_expected_max() > 0) i++;
    }
    return argc;
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"sanlab: a SAN (RDMA) lab without hardware"};
    app.require_subcommand(0, 1);
    bool verbose = false;
    app.set_version_flag("--version", "sanlab " SANLAB_VERSION);
    app.add_flag("-v,--verbose", verbose, "say more on standard error");

    lab::UpOptions up;
    bool no_iommu = false, private_memory = false;
    auto *up_cmd = app.add_subcommand(
        "up", "boot micro guests, joined by a fabric; in a lab that is up, boot those that have died and add more");
    up_cmd->add_option("--guests", up.guests, "how many (default: 2; in a lab that is up: as many as it has)")
        ->check(CLI::Range(1u, lab::kMostGuests));
    up_cmd->add_option("--memory", up.memory_mib, "MiB of each guest (default: 512)")->check(CLI::Range(192, 16384));
    up_cmd->add_flag("--no-iommu", no_iommu, "quicker, but DMA to memory that the driver never locked goes unnoticed");
    up_cmd->add_flag("--private-memory", private_memory,
                     "do not share guest memory: data is copied through the fabric's rings");
    up_cmd->add_option("--revoke", up.revoke, "kind of NIC: key or deregister (default: key)")
        ->check(CLI::IsMember({"key", "deregister"}));
    up_cmd->add_option("--connect", up.uri, "libvirt URI (default: a running libvirtd, else a private one)");
    up_cmd->footer("Interrupted, it undoes what it did.");

    auto *down_cmd = app.add_subcommand("down", "end the lab; leaves nothing running");

    bool json = false;
    auto *status_cmd = app.add_subcommand("status", "guests, links and counters");
    status_cmd->add_flag("-j,--json", json, "as JSON");
    std::string state_of;
    status_cmd->add_option("--nic", state_of,
                           "the whole state of this guest's NIC, as JSON: PDs, regions, CQs, QPs, counters");

    lab::RunOptions run;
    bool no_direct = false;
    auto *run_cmd = app.add_subcommand("run", "run a test between two machines");
    run_cmd->add_option("--on", run.where, "host: two nthost processes here; vm: two guests of the lab")
        ->check(CLI::IsMember({"host", "vm"}))
        ->capture_default_str();
    run_cmd->add_option("--json", run.json_file,
                        "also write the figures as JSON (-: standard output, the table goes to standard error)");
    run_cmd->add_option("--from", run.from, "guest that starts the traffic")->capture_default_str();
    run_cmd->add_option("--to", run.to, "the other guest")->capture_default_str();
    run_cmd->add_option("--timeout", run.seconds, "seconds for each program")
        ->check(CLI::Range(1, 86400))
        ->capture_default_str();
    run_cmd->add_option("--revoke", run.revoke, "on host: kind of NIC")
        ->check(CLI::IsMember({"key", "deregister"}))
        ->capture_default_str();
    run_cmd->add_flag("--no-direct", no_direct, "on host: copy data through the fabric's rings");
    run_cmd
        ->add_option("test", run.test,
                     "write_bw, read_bw, send_bw, write_lat, read_lat, send_lat, reg_lat, reg_rate, santest, or all")
        ->required()
        ->check(CLI::IsMember({"write_bw", "read_bw", "send_bw", "write_lat", "read_lat", "send_lat", "reg_lat",
                               "reg_rate", "santest", "all"}));
    run_cmd->footer(
        "What follows TEST goes to the test program: sanlab run write_bw -s 1M -n 1000\n"
        "Its own options: sanlab run write_bw -h");

    lab::AttachOptions attach;
    auto *attach_cmd = app.add_subcommand("attach", "give a libvirt domain of yours a SAN NIC on the lab's fabric");
    auto *detach_cmd = app.add_subcommand("detach", "take it out again; the domain is as it was before");
    for (CLI::App *cmd : {attach_cmd, detach_cmd}) {
        cmd->add_option("domain", attach.domain, "name or UUID; it must be persistent")->required();
        cmd->add_option("--connect", attach.uri,
                        "libvirt URI (default: the lab's, else a running libvirtd), on this host");
        cmd->add_flag("--dry-run", attach.dry_run, "print the change of the domain's description, and change nothing");
    }
    attach_cmd->add_option("--ip", attach.ip, "IPv4 address of the NIC (default: a free one from 10.77.0.100 on)");
    attach_cmd->add_option("--fabric", attach.fabric,
                           "socket of a sanfabricd of yours (default: the lab's, which is started if need be)");

    auto *doctor_cmd = app.add_subcommand("doctor", "what is missing here, and how to get it");

    const int own = end_of_options(argc, argv, *run_cmd);
    for (int i = own; i < argc; i++) run.arguments.push_back(argv[i]);
    try {
        app.parse(own, argv);
    } catch (const CLI::ParseError &e) {
        return app.exit(e) ? 2 : 0;
    }
    spdlog::set_default_logger(spdlog::stderr_logger_mt("sanlab"));
    spdlog::set_pattern("sanlab: %v");
    spdlog::set_level(verbose ? spdlog::level::info : spdlog::level::warn);
    if (no_iommu) up.iommu = false;
    if (private_memory) up.share_memory = false;
    run.direct = !no_direct;

    try {
        if (*up_cmd || *down_cmd || *run_cmd) lab::catch_interrupts();
        lab::Paths paths = lab::Paths::find();
        if (*up_cmd) return lab::up(paths, up);
        if (*down_cmd) return lab::down(paths);
        if (*status_cmd) return state_of.empty() ? lab::status(paths, json) : lab::nic_state(paths, state_of);
        if (*run_cmd) return lab::run(paths, run);
        if (*attach_cmd) return lab::attach(paths, attach);
        if (*detach_cmd) return lab::detach(paths, attach);
        if (*doctor_cmd) return lab::doctor(paths);
        std::fprintf(stderr, "%s", app.help().c_str());
        return 2;
    } catch (const lab::Interrupted &i) {
        std::fprintf(stderr, "sanlab: interrupted\n");
        return 128 + i.signal;
    } catch (const lab::UserError &e) {
        std::fprintf(stderr, "sanlab: %s\n", e.what());
        return 2;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "sanlab: %s\n", e.what());
        return 1;
    }
}
