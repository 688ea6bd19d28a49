// SPDX-License-Identifier: Apache-2.0
#include "report/error_file.hpp"

#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

using namespace acc::launcher;
using Json = nlohmann::json;
using Kind = supervision::ProcessEnd::Kind;

namespace {

/// Written by torch 2.13.0, Python 3.11: a function with @record that raises ValueError("bad batch:
/// shape (3, 4)\nsecond line \u00e9"), under torchrun; the path of site-packages was shortened.
constexpr const char* kByTorch =
    R"({"message": {"message": "ValueError: bad batch: shape (3, 4)\nsecond line \u00e9", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"/torch/errors/__init__.py\", line 367, in wrapper\n    return f(*args, **kwargs)\n           ^^^^^^^^^^^^^^^^^^\n  File \"fail.py\", line 4, in inner\n    raise ValueError(\"bad batch: shape (3, 4)\\nsecond line \u00e9\")\nValueError: bad batch: shape (3, 4)\nsecond line \u00e9\n", "timestamp": "1795291405"}}})";

class ErrorFileOnDisk {
 public:
  [[nodiscard]] std::string path() const { return (folder_.path() / "error.json").string(); }
  [[nodiscard]] report::ErrorFile read() const { return report::read_error_file(path()); }
  [[nodiscard]] report::ErrorFile read(const std::string& text) const {
    std::ofstream(path()) << text;
    return read();
  }
  [[nodiscard]] std::string refusal(const std::string& reason) const {
    return "(" + path() + " " + reason + ")";
  }

 private:
  acc::test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("error files: PyTorch's format") {
  const report::ErrorFile file = ErrorFileOnDisk().read(kByTorch);
  CHECK(file.message == "ValueError: bad batch: shape (3, 4)\nsecond line \u00e9");
  REQUIRE(file.traceback.size() == 8);
  CHECK(file.traceback.front() == "Traceback (most recent call last):");
  CHECK(file.traceback[3] == "           ^^^^^^^^^^^^^^^^^^");
  CHECK(file.traceback.back() == "second line \u00e9");
  CHECK(file.text == kByTorch);
}

TEST_CASE("error files: other formats, and invalid files") {
  const ErrorFileOnDisk disk;
  CHECK(disk.read().message.empty());  // the file does not exist
  CHECK(report::read_error_file("").message.empty());
  const std::pair<const char*, const char*> good[] = {
      {R"({"message": {"message": "RuntimeError: no", "extraInfo": {"timestamp": "1"}}})",
       "RuntimeError: no"},
      {R"({"message": {"message": "RuntimeError: no", "extraInfo": [1]}})", "RuntimeError: no"},
      {R"({"message": {"message": "no"}})", "no"},
      {R"({"message": "plain", "timestamp": 1})", "plain"},
      {"", ""},
  };
  for (const auto& [text, message] : good) {
    CAPTURE(text);
    const report::ErrorFile file = disk.read(text);
    CHECK(file.message == message);
    CHECK(file.text == text);
    CHECK(file.traceback.empty());
  }
  const std::string nested(500'000, '[');
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string(R"({"message": 3})"),
        std::string(R"({"message": {"text": "x"}})"), std::string("\xff\xfe\0", 3), nested,
        "{\"message\":" + nested + std::string(500'000, ']') + "}"}) {
    CAPTURE(bad.substr(0, 40));
    const report::ErrorFile file = disk.read(bad);
    CHECK(file.message == disk.refusal("is not an error file in PyTorch's format"));
    CHECK(file.text.empty());
  }
}

TEST_CASE("error files: huge files, devices and pipes are rejected without reading them") {
  const ErrorFileOnDisk disk;
  std::ofstream(disk.path()) << R"({"message": "x)";
  std::filesystem::resize_file(disk.path(), 100 << 20);
  CHECK(disk.read().message == disk.refusal("is larger than 1 MiB"));
  std::filesystem::remove(disk.path());
  std::filesystem::create_symlink("/dev/zero", disk.path());
  CHECK(disk.read().message == disk.refusal("is not a regular file"));
  std::filesystem::remove(disk.path());
  REQUIRE(::mkfifo(disk.path().c_str(), 0600) == 0);  // a read would block for ever
  CHECK(disk.read().message == disk.refusal("is not a regular file"));
  std::filesystem::remove(disk.path());
  std::filesystem::create_directory(disk.path());
  CHECK(disk.read().message == disk.refusal("is not a regular file"));
  std::filesystem::remove(disk.path());
  std::filesystem::create_symlink("error.json", disk.path());
  CHECK(disk.read().message == disk.refusal("cannot be read: Too many levels of symbolic links"));
}

TEST_CASE("the launcher's own error file: a copy of the worker's, with its exit code") {
  report::WorkerReport worker;
  const std::pair<supervision::ProcessEnd, int> codes[] = {
      {{Kind::exited, 3}, 3},
      {{Kind::killed, 11}, -11},  // Python's notation
      {{Kind::not_executed, ENOENT}, 127}};
  for (const auto& [end, code] : codes) {
    worker.end = end;
    Json expected = Json::parse(kByTorch);
    expected["message"]["errorCode"] = code;
    CHECK(Json::parse(report::root_cause_file(worker, kByTorch)) == expected);
  }
  // Files without a message object are copied unchanged, as torch does.
  for (const char* text : {R"({"message":"plain","timestamp":1})", R"({"more":1})", "[1]"}) {
    CHECK(report::root_cause_file(worker, text) == text);
  }
}

TEST_CASE("the launcher's own error file if the worker wrote none") {
  report::WorkerReport worker;
  worker.end = supervision::ProcessEnd{Kind::killed, 9};
  worker.ended_at = std::chrono::system_clock::time_point(std::chrono::milliseconds(1'500'999));
  const ErrorFileOnDisk disk;
  const auto written = [&] { return Json::parse(report::root_cause_file(worker, ""))["message"]; };
  CHECK(written() == Json{{"message", "killed by SIGKILL (signal 9)"},
                          {"errorCode", -9},
                          {"extraInfo", {{"py_callstack", ""}, {"timestamp", "1500"}}}});
  worker.error_message = "ValueError: \xff";  // from another machine's report
  worker.traceback = {"Traceback", "ValueError"};
  CHECK(written()["message"] == "ValueError: \ufffd");
  CHECK(disk.read(report::root_cause_file(worker, "")).traceback == worker.traceback);
}
