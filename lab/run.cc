// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab run: one test, santest, or all bandwidth and latency tests both ways.
#include <spdlog/spdlog.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>

#include "commands.h"
#include "interrupt.h"
#include "place.h"
#include "progress.h"
#include "report.h"

namespace lab {

using nlohmann::json;

namespace {

struct Outcome {
    int status = 0;
    json document;        // what the client wrote as JSON, if it was asked to
    std::string trouble;  // last lines of both sides when something failed
};

// Collects one side's output: passes lines on, and takes a JSON document (from a line "{" to a line "}") out of them.
class Collector {
  public:
    // `print`: where its output goes, null: nowhere; its errors go to standard error.
    Collector(std::string who, std::FILE *print) : who_(std::move(who)), print_(print) {}
    LineSink sink() {
        return [this](Stream stream, const std::string &line) {
            std::lock_guard lock(mutex_);
            if (stream == Stream::output && (inside_ || line == "{")) {
                inside_ = line != "}";
                json_ += line + '\n';
                return;
            }
            if (print_) {
                std::fprintf(stream == Stream::output ? print_ : stderr, "%s\n", line.c_str());
                std::fflush(print_);
            }
            tail_ += who_ + ": " + line + '\n';
            if (tail_.size() > 6000) tail_.erase(0, tail_.size() - 4000);
        };
    }
    std::string json_text() {
        std::lock_guard lock(mutex_);
        return json_;
    }
    std::string tail() {
        std::lock_guard lock(mutex_);
        return tail_;
    }

  private:
    std::string who_;
    std::FILE *print_;
    bool inside_ = false;
    std::mutex mutex_;
    std::string json_, tail_;
};

std::optional<int> wait_for(Runner &runner, double seconds) {
    for (const auto start = std::chrono::steady_clock::now();;) {
        const auto status = runner.wait(0.1);
        throw_if_interrupted();
        if (status || std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= seconds)
            return status;
    }
}

// Client on machine `client`, server on the other. Interrupted, it leaves neither running.
Outcome run_pair(Place &place, const std::string &program, unsigned client, const std::vector<std::string> &server_args,
                 const std::vector<std::string> &client_args, unsigned seconds, std::FILE *print) {
    unsigned server = 1 - client;
    Collector out(place.name(client), print), other(place.name(server), nullptr);
    auto server_runner = place.start(server, program, server_args, seconds, other.sink());
    auto client_runner = place.start(client, program, client_args, seconds, out.sink());
    Outcome o;
    auto client_status = wait_for(*client_runner, seconds + 15);
    if (!client_status) client_runner->kill();
    auto server_status = wait_for(*server_runner, client_status == 0 ? 15 : 2);
    if (!server_status) server_runner->kill();
    o.status = !client_status ? 124 : *client_status ? *client_status : server_status.value_or(124);
    client_runner.reset();
    server_runner.reset();
    o.document = json::parse(out.json_text(), nullptr, false);
    if (o.status) o.trouble = (print ? "" : out.tail()) + other.tail();
    return o;
}

// Standard output is for the JSON alone if it goes there.
std::FILE *table_of(const RunOptions &options) { return options.json_file == "-" ? stderr : stdout; }

bool is_bandwidth(const std::string &test) { return test.size() > 3 && test.compare(test.size() - 3, 3, "_bw") == 0; }

bool has_option(const std::vector<std::string> &args, const std::string &option) {
    return std::any_of(args.begin(), args.end(),
                       [&](const std::string &a) { return a == option || a.rfind(option + '=', 0) == 0; });
}

int run_perf(Place &place, const RunOptions &options) {
    std::vector<std::string> common = {options.test};
    common.insert(common.end(), options.arguments.begin(), options.arguments.end());
    if (is_bandwidth(options.test) && !has_option(options.arguments, "--buffer"))
        common.push_back("--buffer=" + place.buffer());
    std::vector<std::string> server = common, client = common;
    if (is_bandwidth(options.test)) client.push_back("--memcpy");
    client.push_back("--json=-");
    client.push_back(place.ip(1));
    Outcome o = run_pair(place, "sanperf.exe", 0, server, client, options.seconds, table_of(options));
    if (o.status) {
        std::fprintf(stderr, "%s", o.trouble.c_str());
        spdlog::error("{} failed with status {}", options.test, o.status);
        return o.status;
    }
    if (!o.document.is_object()) throw std::runtime_error("sanperf gave no results");
    print_ratio(table_of(options), o.document);
    o.document["place"] = place.description();
    write_json(options.json_file, o.document);
    return all_verified(o.document) ? 0 : 1;
}

int run_all(Place &place, const RunOptions &options) {
    struct Case {
        const char *test;
        std::vector<std::string> sizes;
    };
    const Case cases[] = {{"write_bw", {"64K", "1M"}}, {"read_bw", {"64K", "1M"}}, {"send_bw", {"64K", "1M"}},
                          {"write_lat", {"8"}},        {"read_lat", {"8"}},        {"send_lat", {"8"}}};
    json document = {
        {"place", place.description()}, {"memcpy_bytes_per_second", measure_memcpy()}, {"results", json::array()}};
    int status = 0;
    for (const Case &c : cases) {
        for (unsigned client : {0u, 1u}) {
            Progress progress(std::string(c.test) + ' ' + place.name(client) + " -> " + place.name(1 - client));
            for (const std::string &size : c.sizes) {
                std::vector<std::string> common = {c.test, "--size=" + size};
                if (is_bandwidth(c.test)) common.push_back("--buffer=" + place.buffer());
                common.insert(common.end(), options.arguments.begin(), options.arguments.end());
                std::vector<std::string> client_args = common;
                client_args.push_back("--json=-");
                client_args.push_back(place.ip(1 - client));
                Outcome o = run_pair(place, "sanperf.exe", client, common, client_args, options.seconds, nullptr);
                if (o.status || !o.document.is_object()) {
                    progress.done("FAILED, status " + std::to_string(o.status));
                    std::fprintf(stderr, "%s", o.trouble.c_str());
                    status = o.status ? o.status : 1;
                    break;
                }
                for (json r : o.document["results"]) {
                    r["test"] = c.test;
                    r["from"] = place.name(client);
                    r["to"] = place.name(1 - client);
                    document["results"].push_back(r);
                }
            }
        }
    }
    print_table(table_of(options), document);
    write_json(options.json_file, document);
    return status ? status : all_verified(document) ? 0 : 1;
}

int run_santest(Place &place, const RunOptions &options) {
    std::vector<std::string> server = {"--serve"}, client = options.arguments;
    client.push_back(place.ip(1));
    Outcome o = run_pair(place, "santest.exe", 0, server, client, options.seconds, stdout);
    if (o.status) std::fprintf(stderr, "%s", o.trouble.c_str());
    return o.status;
}

// Help and version come from the program itself, which needs no machine for that.
int ask_program(const Paths &paths, const RunOptions &options) {
    const bool santest = options.test == "santest";
    std::vector<std::string> argv = {paths.need_program("nthost"), "--path", paths.windows, "--",
                                     paths.need_windows(santest ? "santest.exe" : "sanperf.exe")};
    if (!santest && options.test != "all") argv.push_back(options.test);
    argv.insert(argv.end(), options.arguments.begin(), options.arguments.end());
    Process program(argv, [](Stream stream, const std::string &line) {
        std::fprintf(stream == Stream::output ? stdout : stderr, "%s\n", line.c_str());
    });
    return wait_for(program, 30).value_or(124);
}

bool asks_program(const std::vector<std::string> &args) {
    for (const char *question : {"-h", "--help", "--version"})
        if (std::find(args.begin(), args.end(), question) != args.end()) return true;
    return false;
}

}  // namespace

int run(const Paths &paths, const RunOptions &options) {
    for (const char *own : {"--on", "--json", "--from", "--to", "--revoke", "--no-direct"})
        if (has_option(options.arguments, own))
            throw UserError(std::string(own) + " is an option of sanlab run: it stands before " + options.test +
                            ", what follows goes to the test program");
    if (asks_program(options.arguments)) return ask_program(paths, options);
    if (options.test == "santest" && !options.json_file.empty())
        throw UserError("--json: santest has no figures; santest --report=FILE writes its table");
    check_json_file(options.json_file);
    std::unique_ptr<Place> place = options.where == "host"
                                       ? host_place(paths, {options.direct, options.revoke})
                                       : vm_place(paths, options.from, options.to, "sanlab run " + options.test);
    if (options.test == "all") return run_all(*place, options);
    if (options.test == "santest") return run_santest(*place, options);
    return run_perf(*place, options);
}

}  // namespace lab
