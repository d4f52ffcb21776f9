// trainmon serve RUN: the page of `trainmon report`, live.
#include <csignal>
#include <iostream>
#include <memory>

#include "base/file.h"
#include "base/text.h"
#include "cli/follow.h"
#include "cli/output.h"
#include "cli/python.h"
#include "serve/served.h"

namespace trainmon::cli {
namespace {

struct ServeArguments {
  std::string run;
  serve::ServeOptions options;
  int max_megabytes = 4;
  bool opens = false;
};

// What a browser itself says goes nowhere. `open` may last as long as the browser.
constexpr const char* kOpen = R"(import os, sys, webbrowser
said = os.dup(2)
nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1)
os.dup2(nowhere, 2)
if not webbrowser.open(sys.argv[1]):
    os.write(said, b'trainmon: no browser could be opened; the address works in any on this machine\n')
)";

// Everybody on a machine sees the arguments of a program. So a browser is given the name of a file
// that only its owner may read, which leads on to the address.
class OpenedPage {
 public:
  OpenedPage() = default;
  void open(const std::string& address) {
    std::string folder = (std::filesystem::temp_directory_path() / "trainmon-XXXXXX").native();
    if (::mkdtemp(folder.data()) == nullptr) {
      throw std::runtime_error("there is no room for a file in " +
                               std::filesystem::temp_directory_path().string());
    }
    folder_ = folder;
    const std::filesystem::path path = folder_ / "open.html";
    write_at(create_file(path, 0600), 0,
             "<!doctype html>\n<meta http-equiv=\"refresh\" content=\"0; url=" + address + "\">\n",
             path);
    const std::vector<std::string> file = {"file://" + path.native()};
    browser_ = std::make_unique<PythonProcess>(kOpen, file, true);
  }
  ~OpenedPage() {
    if (folder_.empty()) return;
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  OpenedPage(const OpenedPage&) = delete;
  OpenedPage& operator=(const OpenedPage&) = delete;

 private:
  std::filesystem::path folder_;
  std::unique_ptr<PythonProcess> browser_;
};

void run_serve(const ServeArguments& given, const Context& context) {
  end_on_interrupt();
  serve::ServeOptions options = given.options;
  options.max_bytes = std::int64_t{given.max_megabytes} << 20;
  serve::Served served(given.run, options);
  const std::string address = served.address();
  if (context.json) {
    print_json(Json{{"address", address}});
  } else {
    std::cout << address << "\n";
  }
  std::cout.flush();
  if (!serve::is_loopback(options.host)) {
    std::cerr << "trainmon: everybody who reaches this machine and has the address can read "
              << printable(given.run) << "; nothing is encrypted on the way\n";
  }
  if (!context.quiet) {
    std::cerr << "serving " << printable(given.run) << "; Ctrl-C ends\n";
  }
  OpenedPage opened;
  if (given.opens) opened.open(address);
  while (std::cout && wait_to_look(1.0)) {
  }
  // A second one ends at once, even while a long run is being read.
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
}

}  // namespace

void add_serve(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("serve", "the page of report, live in a browser");
  const auto given = std::make_shared<ServeArguments>();
  serve::ServeOptions& options = given->options;
  command->add_option("RUN", given->run, "run directory, or a directory that holds runs")
      ->required();
  command->add_option("--port", options.port, "port to listen on; 0: any that is free")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  command->add_option("--host", options.host, "address to listen on; 0.0.0.0: all of this machine")
      ->capture_default_str();
  command->add_flag("--open", given->opens, "open the page in a browser");
  command->add_option("--max-size", given->max_megabytes, "largest size of a page in MiB")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->footer(
      R"(Prints the address, which has a secret in it: whoever knows it can read the run.
Only programs of this machine reach it, unless --host says otherwise. The page
follows the run and keeps the place that you look at. It is read only, and it
takes at most 5 % of a core. Ctrl-C ends, with exit code 0.

Examples:
  trainmon serve runs/a --open
  trainmon serve runs                # a list of the runs in it
  trainmon serve runs/a --port 8600
  ssh -L 8600:127.0.0.1:8600 HOST    # elsewhere; then open the address there)");
  command->callback([given, &context] { run_serve(*given, context); });
}

}  // namespace trainmon::cli
