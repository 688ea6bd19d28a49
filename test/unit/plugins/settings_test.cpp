// SPDX-License-Identifier: Apache-2.0
#include "acc/settings/settings.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/faults.hpp"
#include "acc/settings/setting_rows.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <set>

namespace acc::settings {
namespace {

const Source kFlag = {Source::Kind::flag, "--flag"};

std::string refusal(const std::string& key, const std::string& text) {
  return test::refusal([&] { Settings().set_named(key, text, {Source::Kind::file, "c.yaml:3"}); });
}

TEST_CASE("the table names each setting, flag, variable and JSON path once") {
  std::set<std::string> names;
  std::set<std::string> variables;
  std::set<std::string> paths;
  for (const SettingRow& row : settings_table()) {
    CAPTURE(row.key);
    CHECK(names.insert(std::string(row.key)).second);
    for (const std::string_view alias : split(row.alias, '|')) {
      CHECK(names.insert(std::string(alias)).second);
    }
    CHECK(variables.insert(own_variable(row)).second);
    CHECK((row.environment.empty() || variables.insert(std::string(row.environment)).second));
    CHECK((row.json.empty() || paths.insert(std::string(row.json)).second));
    CHECK(row.environment.empty() == (row.exported == Export::never));
    CHECK_FALSE(row.help.empty());
    CHECK((row.flag != Flag::toggle || row.type == Type::boolean));
  }
}

TEST_CASE("every default is a value that its row allows") {
  for (const SettingRow& row : settings_table()) {
    if (!row.fallback.empty()) {
      CAPTURE(row.key);
      CHECK_NOTHROW(Settings().set(row, std::string(row.fallback), kFlag));
    }
  }
}

TEST_CASE("booleans are the words of Python's strtobool") {
  for (const std::string word : {"y", "yes", "t", "true", "on", "1", "True", "YES"}) {
    CHECK(parse_boolean(word) == true);
  }
  for (const std::string word : {"n", "no", "f", "false", "off", "0", "False", "OFF"}) {
    CHECK(parse_boolean(word) == false);
  }
  for (const std::string word : {"", "2", "tru", "none"}) {
    CHECK_FALSE(parse_boolean(word).has_value());
  }
}

TEST_CASE("counts may be floats without a fraction, integers may not") {
  CHECK(parse_count("5e8") == 500'000'000);
  CHECK(parse_count("1e5") == 100'000);
  CHECK(parse_count("12") == 12);
  CHECK_FALSE(parse_count("0.5").has_value());
  CHECK_FALSE(parse_count("1e30").has_value());
  CHECK_FALSE(parse_count("nan").has_value());
  CHECK_FALSE(parse_integer("5e8").has_value());
  CHECK_FALSE(parse_integer("12x").has_value());
  CHECK_FALSE(parse_integer("").has_value());
  CHECK_FALSE(parse_real("inf").has_value());
}

TEST_CASE("sizes and times have units") {
  CHECK(parse_size("4096") == 4096);
  CHECK(parse_size("64MiB") == 64 << 20);
  CHECK(parse_size(" 2 gib ") == std::int64_t{2} << 30);
  CHECK(parse_size("8388607TiB") == std::int64_t{8388607} << 40);
  for (const std::string text : {"", "MiB", "64MB", "1.5MiB", "-1", "8388608TiB", "1 2", "0x10"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_size(text).has_value());
  }
  using namespace std::chrono_literals;
  CHECK(parse_duration("500ms") == 500ms);
  CHECK(parse_duration("0.5s") == 500ms);
  CHECK(parse_duration("10 MIN") == 10min);
  CHECK(parse_duration("2h") == 2h);
  CHECK(parse_duration("1d") == 24h);
  CHECK(parse_duration("0") == 0ms);
  for (const std::string text : {"", "5", "s", "-1s", "5 sec", "1h30min", "1e9s", "99999999999d"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_duration(text).has_value());
  }
}

TEST_CASE("sizes and times have ranges in their own units") {
  constexpr SettingRow kRows[] = {{.key = "buffer", .type = Type::size, .allowed = "4KiB..1MiB"},
                                  {.key = "pause", .type = Type::duration, .allowed = "1ms.."}};
  Settings settings(kRows);
  settings.set(kRows[0], "4096", kFlag);
  settings.set(kRows[1], "2s", kFlag);
  CHECK(settings.size(kRows[0]) == 4096);
  CHECK(settings.duration(kRows[1]) == std::chrono::seconds(2));
  CHECK_THROWS_WITH(settings.set(kRows[0], "2MiB", kFlag),
                    "--flag must be a size (such as 64MiB) 4KiB..1MiB, got \"2MiB\"");
  CHECK_THROWS_WITH(settings.set(kRows[1], "0", kFlag),
                    "--flag must be a time (such as 500ms or 2h) of at least 1ms, got \"0\"");
}

TEST_CASE("text is stored as given and parsed by type") {
  Settings settings;
  settings.set("fsdp_sharding_strategy"_key, "2", kFlag);
  CHECK(settings.text("fsdp_sharding_strategy"_key) == "2");
  CHECK(settings.choice("fsdp_sharding_strategy"_key) == "SHARD_GRAD_OP");
  settings.set("fsdp_sharding_strategy"_key, "hybrid_shard", kFlag);
  CHECK(settings.choice("fsdp_sharding_strategy"_key) == "HYBRID_SHARD");
  settings.set("fsdp_transformer_layer_cls_to_wrap"_key, "A, B,,C", kFlag);
  CHECK(settings.list("fsdp_transformer_layer_cls_to_wrap"_key) ==
        std::vector<std::string>{"A", "B", "C"});
  CHECK(settings.given("fsdp_sharding_strategy"_key));
  settings.reset("fsdp_sharding_strategy"_key);
  CHECK_FALSE(settings.given("fsdp_sharding_strategy"_key));
  CHECK(settings.choice("fsdp_sharding_strategy"_key) == "FULL_SHARD");
}

TEST_CASE("of many and long faults the first ones are reported, and their beginnings") {
  Faults faults;
  for (int i = 0; i < 1000; ++i) {
    faults.add(std::to_string(i) + std::string(10'000, 'x'));
  }
  const std::string error = test::error_of([&] { faults.raise(); });
  CHECK(test::contains(error, "19xxx"));
  CHECK(error.ends_with("x...\nand more"));
  CHECK(error.size() < 50'000);
}

TEST_CASE("the error for a wrong value names place, key, expected and found value") {
  CHECK(refusal("zero_stage", "4") == "c.yaml:3: zero_stage must be an integer 0..3, got \"4\"");
  CHECK(refusal("mixed_precision", "bf61") ==
        "c.yaml:3: mixed_precision must be no, fp16, bf16 or fp8, got \"bf61\"; did you mean "
        "\"bf16\"?");
  CHECK(refusal("zero_stag", "1") ==
        "c.yaml:3: unknown key \"zero_stag\"; did you mean \"zero_stage\"?");
  CHECK(refusal("gradient_clipping", "-1") ==
        "c.yaml:3: gradient_clipping must be a number of at least 0, got \"-1\"");
}

}  // namespace
}  // namespace acc::settings
