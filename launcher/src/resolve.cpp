#include "acc/launcher/resolve.hpp"

#include "acc/plugins/accelerate_config.hpp"
#include "acc/plugins/deepspeed_json.hpp"
#include "acc/plugins/faults.hpp"
#include "acc/plugins/strategy.hpp"
#include "machines.hpp"
#include "program_command.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;
using plugins::Device;
using plugins::Faults;
using plugins::Section;
using plugins::SettingRow;
using plugins::Settings;
using plugins::Source;

constexpr std::uint16_t kDefaultPort = 29500;  // torchrun's

std::string variable(const plugins::Environment& environment, const std::string& name,
                     const std::string& fallback = "") {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? fallback : found->second;
}

/// A float as Python prints it: Accelerate's flags pass through one.
std::string float_text(const std::string& text) {
  const auto number = plugins::parse_real(text);
  if (!number) {
    return text;
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), *number).ptr;
  std::string printed(buffer.data(), end);
  return printed.find_first_of(".e") == std::string::npos ? printed + ".0" : printed;
}

class Resolver {
 public:
  Resolver(const Flags& flags, const std::optional<plugins::Document>& config,
           const plugins::Environment& environment, const HostFacts& facts)
      : flags_(flags), config_(config), environment_(environment), facts_(facts) {}

  LaunchPlan resolve() {
    read_values();
    choose_mode();
    place_workers();
    choose_device();
    read_rendezvous();
    read_sharding();
    plan_.command = program_command(flags_, settings_, environment_, facts_);
    plan_.working_directory = facts_.working_directory.string();
    plan_.error_directory = (facts_.scratch_directory / plan_.run_id).string();
    build_environment();
    if (settings_.boolean("quiet")) {
      plan_.notices.clear();
    }
    plan_.settings = std::move(settings_);
    return std::move(plan_);
  }

 private:
  void notice(std::string line) { plan_.notices.push_back(std::move(line)); }

  [[nodiscard]] std::string origin() const {
    return plan_.mode == Mode::fsdp ? "fsdp" : plan_.mode == Mode::deepspeed ? "deepspeed" : "none";
  }

  // --- values -------------------------------------------------------------------------------

  void read_values() {
    Faults faults;
    if (config_) {
      faults.collect([&] { file_ = plugins::apply_accelerate_config(*config_, settings_); });
      plan_.notices = file_.notices;
    }
    for (const Flags::Value& value : flags_.values) {
      const bool real = plugins::find_setting(value.key)->type == plugins::Type::real;
      faults.collect([&] {
        settings_.set(value.key, real ? float_text(value.text) : value.text,
                      {Source::Kind::flag, value.written});
      });
    }
    faults.raise();
  }

  // --- mode ---------------------------------------------------------------------------------

  void choose_mode() {
    Faults faults;
    std::string chosen;
    for (const std::string key : {"multi_gpu", "use_fsdp", "use_deepspeed"}) {
      if (!settings_.boolean(key)) {
        continue;
      }
      if (!chosen.empty()) {
        faults.add("--" + chosen + " and --" + key + " exclude each other; choose one mode");
      }
      chosen = key;
    }
    if (settings_.boolean("multi_gpu") && cpu_flag()) {
      faults.add("--multi_gpu and --cpu exclude each other; choose one");
    }
    plan_.mode = chosen.empty() ? mode_of_file() : mode_of_flag(chosen);
    check_flags_of_other_modes(faults);
    faults.raise();
  }

  [[nodiscard]] bool cpu_flag() const { return flags_.find("use_cpu") != nullptr; }

  static Mode mode_of_flag(const std::string& flag) {
    return flag == "use_fsdp"        ? Mode::fsdp
           : flag == "use_deepspeed" ? Mode::deepspeed
                                     : Mode::multi_gpu;
  }

  [[nodiscard]] Mode mode_of_file() const {
    if (file_.distributed_type == "FSDP")
      return Mode::fsdp;
    if (file_.distributed_type == "DEEPSPEED")
      return Mode::deepspeed;
    if (file_.distributed_type == "MULTI_GPU")
      return Mode::multi_gpu;
    return Mode::plain;
  }

  /// A flag that would silently do nothing is a mistake of the user.
  void check_flags_of_other_modes(Faults& faults) const {
    for (const Flags::Value& value : flags_.values) {
      const Section section = plugins::find_setting(value.key)->section;
      if (section == Section::fsdp && plan_.mode != Mode::fsdp) {
        faults.add(value.written + " counts in FSDP mode only; add --use_fsdp or take it out");
      } else if (section == Section::deepspeed && plan_.mode != Mode::deepspeed) {
        faults.add(value.written +
                   " counts in DeepSpeed mode only; add --use_deepspeed or take it out");
      } else if (section == Section::parallelism && plan_.mode != Mode::fsdp) {
        faults.add(value.written + " counts in FSDP mode only" +
                   (plan_.mode == Mode::deepspeed
                        ? "; for hpZ set zero_hpz_partition_size in the DeepSpeed JSON file"
                        : "; add --use_fsdp or take it out"));
      }
    }
    if (settings_.boolean("use_parallelism_config") && plan_.mode != Mode::fsdp) {
      faults.add("--use_parallelism_config counts in FSDP mode only; add --use_fsdp");
    }
  }

  // --- machines and ranks -------------------------------------------------------------------

  void place_workers() {
    plan_.num_machines = static_cast<int>(settings_.integer("num_machines"));
    plan_.machine_rank = static_cast<int>(settings_.integer("machine_rank"));
    read_port();
    Faults faults;
    faults.collect([&] { read_num_processes(); });
    faults.collect([&] { check_machines(); });
    faults.raise();
    plan_.local_world_size = plan_.num_processes / plan_.num_machines;
    if (plan_.num_machines > 1) {
      plan_.main_process_ip = settings_.text("main_process_ip");
    }
  }

  void read_port() {
    plan_.main_process_port = kDefaultPort;
    if (settings_.has("main_process_port")) {
      plan_.main_process_port = static_cast<std::uint16_t>(settings_.integer("main_process_port"));
      plan_.port_was_given = true;
    }
  }

  void read_num_processes() {
    if (!settings_.has("num_processes")) {
      settings_.set("num_processes", std::to_string(default_num_processes()),
                    {Source::Kind::derived, "GPUs of this machine, else 1"});
    }
    plan_.num_processes = static_cast<int>(settings_.integer("num_processes"));
    if (plan_.num_processes % plan_.num_machines != 0) {
      throw Error(Errc::config, "--num_processes " + std::to_string(plan_.num_processes) +
                                    " is the total and must be a multiple of --num_machines " +
                                    std::to_string(plan_.num_machines));
    }
    if (settings_.boolean("multi_gpu") && plan_.num_processes < 2) {
      throw Error(Errc::config, "--multi_gpu needs --num_processes of at least 2, got 1");
    }
  }

  [[nodiscard]] int default_num_processes() const {
    const bool file_decides = config_ && file_.distributed_type != "NO";
    if (file_decides || plan_.num_machines > 1) {
      throw Error(Errc::config,
                  "--num_processes is missing, the number of workers over all machines" +
                      (config_ ? "; " + config_->path.string() + " does not say it either"
                               : std::string()));
    }
    return config_ || settings_.boolean("use_cpu") ? 1 : std::max(1, facts_.gpus);
  }

  void check_machines() {
    if (plan_.num_machines > 1 &&
        (!settings_.has("machine_rank") || !settings_.has("main_process_ip"))) {
      const std::string address =
          settings_.has("main_process_ip") ? settings_.text("main_process_ip") : facts_.hostname;
      throw Error(
          Errc::config,
          "--num_machines " + std::to_string(plan_.num_machines) + " needs " +
              (settings_.has("machine_rank")      ? "--main_process_ip"
               : settings_.has("main_process_ip") ? "--machine_rank"
                                                  : "--machine_rank and --main_process_ip") +
              "; with this machine as machine 0, type" +
              machines_hint(flags_, plan_.num_machines, address, plan_.main_process_port));
    }
    if (plan_.num_machines > 1 && plan_.main_process_port == 0) {
      throw Error(Errc::config,
                  "--main_process_port 0 lets machine 0 choose, and the others cannot know it; "
                  "name a port");
    }
    if (plan_.machine_rank >= plan_.num_machines) {
      throw Error(Errc::config, "machine_rank " + std::to_string(plan_.machine_rank) +
                                    " must be below num_machines " +
                                    std::to_string(plan_.num_machines));
    }
  }

  void read_rendezvous() {
    plan_.run_id = variable(environment_, "PET_RDZV_ID", "none");
    plan_.shutdown_timeout = std::chrono::seconds(settings_.integer("shutdown_timeout"));
    for (const std::string_view entry : plugins::split(settings_.text("rdzv_conf"), ',')) {
      const auto equals = std::min(entry.find('='), entry.size());
      const std::string_view key = entry.substr(0, equals);
      const auto seconds = plugins::parse_integer(entry.substr(std::min(entry.size(), equals + 1)));
      if ((key != "timeout" && key != "join_timeout") || !seconds || *seconds < 1) {
        throw Error(Errc::config,
                    "--rdzv_conf must be timeout=SECONDS, got \"" + std::string(entry) + "\"");
      }
      plan_.join_timeout = std::chrono::seconds(*seconds);
    }
  }

  // --- device -------------------------------------------------------------------------------

  void choose_device() {
    read_gpu_ids();
    const bool insists = plan_.mode == Mode::multi_gpu || !plan_.gpu_ids.empty();
    const bool asked_for_cpu = cpu_flag() || settings_.boolean("use_cpu");
    if (insists && asked_for_cpu) {
      use_cpu_despite_gpus();
      return;
    }
    if (asked_for_cpu || file_.distributed_type == "MULTI_CPU") {
      return;
    }
    const int gpus = plan_.gpu_ids.empty() ? facts_.gpus : static_cast<int>(plan_.gpu_ids.size());
    if (gpus == 0 && insists) {
      throw Error(Errc::device, insisting() + " asks for GPUs, but there is none" +
                                    (facts_.physical_gpus > 0 ? " that CUDA_VISIBLE_DEVICES leaves"
                                                              : " on this machine") +
                                    "; take it out, or give --cpu");
    }
    if (gpus >= plan_.local_world_size) {
      plan_.device = Device::cuda;
      switch_to_multi_gpu();
    } else if (gpus > 0 && plan_.mode != Mode::plain) {
      throw Error(Errc::device, std::to_string(plan_.local_world_size) +
                                    " processes on this machine need as many GPUs, but there " +
                                    (gpus == 1 ? "is 1" : "are " + std::to_string(gpus)) +
                                    "; lower --num_processes, or give --cpu");
    } else if (plan_.mode == Mode::fsdp || plan_.mode == Mode::deepspeed) {
      notice(std::string("no GPU on this machine: ") +
             (plan_.mode == Mode::fsdp ? "FSDP" : "ZeRO") + " runs on the CPU");
    }
  }

  void read_gpu_ids() {
    const std::string& text = settings_.text("gpu_ids");
    if (text.empty() || plugins::lower(text) == "all") {
      return;
    }
    const std::string where = settings_.source("gpu_ids").where;
    for (const std::string& id : settings_.list("gpu_ids")) {
      const auto number = plugins::parse_integer(id);
      const bool by_name = id.starts_with("GPU-") || id.starts_with("MIG-");
      if (!by_name && (!number || *number < 0)) {
        throw Error(
            Errc::config,
            where + ": gpu_ids must be all, or numbers joined by commas, got \"" + text + "\"");
      }
      if (number && *number >= facts_.physical_gpus && facts_.physical_gpus > 0) {
        throw Error(Errc::device, where + ": gpu_ids names GPU " + id + ", but this machine has " +
                                      std::to_string(facts_.physical_gpus) + ", numbered from 0");
      }
      plan_.gpu_ids.push_back(id);
    }
    if (facts_.physical_gpus == 0 && !cpu_flag() && !settings_.boolean("use_cpu")) {
      throw Error(Errc::device, where + ": gpu_ids " + text +
                                    " asks for GPUs, but there is none on this machine; take it "
                                    "out, or give --cpu");
    }
  }

  /// --cpu on the command line beats what a file says about GPUs; two flags contradict each other.
  void use_cpu_despite_gpus() {
    if (flags_.find("gpu_ids") != nullptr && cpu_flag()) {
      throw Error(Errc::config, "--gpu_ids and --cpu exclude each other; choose one");
    }
    if (!cpu_flag()) {
      throw Error(Errc::config, settings_.source("use_cpu").where + ": use_cpu contradicts " +
                                    insisting() + "; take one out");
    }
    notice("--cpu: " + insisting() + " is not used");
    plan_.gpu_ids.clear();
    if (plan_.mode == Mode::multi_gpu) {
      plan_.mode = Mode::plain;
    }
  }

  [[nodiscard]] std::string insisting() const {
    if (!plan_.gpu_ids.empty()) {
      return "gpu_ids " + settings_.text("gpu_ids");
    }
    return settings_.boolean("multi_gpu") ? "--multi_gpu" : "distributed_type MULTI_GPU";
  }

  /// Accelerate's own default without a file and without a mode.
  void switch_to_multi_gpu() {
    if (plan_.mode == Mode::plain && !config_ && facts_.gpus > 1 && plan_.num_processes > 1) {
      plan_.mode = Mode::multi_gpu;
    }
  }

  // --- sharding -----------------------------------------------------------------------------

  void read_sharding() {
    if (file_.has_parallelism_config && plan_.mode == Mode::fsdp &&
        !settings_.boolean("use_fsdp")) {
      settings_.set("use_parallelism_config", "true",
                    {Source::Kind::derived, "parallelism_config in the file"});
    }
    inherit_variables();
    if (plan_.mode == Mode::fsdp) {
      read_fsdp();
    } else if (plan_.mode == Mode::deepspeed) {
      read_deepspeed();
    }
    const plugins::ShardingSettings sharding = plugins::sharding_settings(
        settings_, origin(), plan_.num_processes, plan_.local_world_size);
    explain_groups(sharding);
  }

  /// Where Accelerate leaves a variable unset, the parent's value reaches the program; then it also
  /// counts here.
  void inherit_variables() {
    Faults faults;
    for (const SettingRow& row : plugins::settings_table()) {
      const std::string name(row.environment);
      const bool may_inherit = row.exported == plugins::Export::given && !name.empty() &&
                               plugins::applies(row.section, origin());
      const std::string value = may_inherit ? variable(environment_, name) : "";
      if (!value.empty() && !settings_.given(row.key)) {
        faults.collect([&] { settings_.set(row.key, value, {Source::Kind::environment, name}); });
      }
    }
    faults.raise();
  }

  void read_fsdp() {
    const auto from_file = [&](std::string_view key) {
      return settings_.source(key).kind == Source::Kind::file;
    };
    if (from_file("fsdp_cpu_ram_efficient_loading") && from_file("fsdp_sync_module_states") &&
        settings_.boolean("fsdp_cpu_ram_efficient_loading") &&
        !settings_.boolean("fsdp_sync_module_states")) {
      throw Error(Errc::config,
                  settings_.source("fsdp_sync_module_states").where +
                      ": fsdp_cpu_ram_efficient_loading: true needs fsdp_sync_module_states: true");
    }
    const bool version_1 = settings_.integer("fsdp_version") == 1;
    if (version_1 && settings_.given("fsdp_reshard_after_forward")) {
      read_strategy_from_reshard();
    } else if (!version_1 && settings_.given("fsdp_sharding_strategy")) {
      notice(settings_.source("fsdp_sharding_strategy").where +
             ": fsdp_sharding_strategy has no effect with FSDP 2, which reads "
             "fsdp_reshard_after_forward");
    }
  }

  /// Accelerate's questionnaire stores the strategy of FSDP 1 under fsdp_reshard_after_forward.
  void read_strategy_from_reshard() {
    const std::string text = settings_.text("fsdp_reshard_after_forward");
    const Source source = settings_.source("fsdp_reshard_after_forward");
    if (plugins::parse_boolean(text) || settings_.given("fsdp_sharding_strategy")) {
      notice(source.where + ": fsdp_reshard_after_forward " + text +
             " has no effect with FSDP 1, which reads fsdp_sharding_strategy");
      return;
    }
    settings_.set("fsdp_sharding_strategy", text, source);
    notice(source.where + ": fsdp_reshard_after_forward " + text +
           " is read as fsdp_sharding_strategy, its name with FSDP 1");
  }

  void read_deepspeed() {
    const std::string launcher = settings_.text("deepspeed_multinode_launcher");
    if (plan_.num_machines > 1 && !launcher.empty() && plugins::lower(launcher) != "standard") {
      notice("deepspeed_multinode_launcher " + launcher +
             " has no effect: acclaunch is started on every machine");
    }
    if (!settings_.has("deepspeed_config_file")) {
      return;
    }
    const fs::path path = find_deepspeed_config();
    const auto notices =
        plugins::apply_deepspeed_json(plugins::load_document(path), plan_.num_processes, settings_);
    plan_.notices.insert(plan_.notices.end(), notices.begin(), notices.end());
    if (settings_.integer("zero_hpz_partition_size") > 1 && settings_.integer("zero_stage") != 3) {
      notice(settings_.source("zero_hpz_partition_size").where +
             ": zero_hpz_partition_size has no effect below stage 3");
    }
  }

  /// As named from the working directory, else beside the YAML file. In the second case the program
  /// gets the path that it can open.
  fs::path find_deepspeed_config() {
    const fs::path named = settings_.text("deepspeed_config_file");
    std::error_code error;
    if (named.is_absolute() || fs::exists(facts_.working_directory / named, error)) {
      return named.is_absolute() ? named : shortest(facts_.working_directory / named, named);
    }
    if (config_) {
      const fs::path beside = config_->path.parent_path() / named;
      if (fs::exists(facts_.working_directory / beside, error)) {
        Source source = settings_.source("deepspeed_config_file");
        settings_.set("deepspeed_config_file", beside.string(), std::move(source));
        return shortest(facts_.working_directory / beside, beside);
      }
    }
    throw Error(Errc::not_found, settings_.source("deepspeed_config_file").where +
                                     ": cannot find " + named.string() + " in " +
                                     facts_.working_directory.string() +
                                     (config_ ? " or beside " + config_->path.string() : ""));
  }

  /// The path as the user knows it, where that is the same file from here.
  static fs::path shortest(const fs::path& full, const fs::path& named) {
    std::error_code error;
    return fs::equivalent(full, named, error) ? named : full;
  }

  void explain_groups(const plugins::ShardingSettings& sharding) {
    if (!plugins::switches(sharding.strategy).replicate) {
      return;
    }
    const std::string name = plugins::upper(plugins::to_string(sharding.strategy));
    const bool by_size = settings_.choice("fsdp_sharding_strategy") != name ||
                         settings_.integer("fsdp_version") == 2;
    if (by_size) {
      notice("shard groups of " + std::to_string(sharding.shard_size) + " of " +
             std::to_string(plan_.num_processes) + " processes: the strategy is " + name);
    } else if (sharding.shard_size == 0 && plan_.num_machines == 1) {
      notice(name + " on one machine: all " + std::to_string(plan_.num_processes) +
             " processes are one shard group, with no replicas (--parallelism_config_dp_shard_size "
             "makes smaller groups)");
    }
  }

  // --- environment of the workers -----------------------------------------------------------

  void build_environment() {
    plugins::Environment& result = plan_.environment;
    result = plugins::settings_to_environment(settings_, origin(), plan_.device);
    if (plan_.mode == Mode::deepspeed) {
      result["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields();
      result["PYTHONPATH"] = python_path();
    }
    if (plan_.mode == Mode::plain) {
      result["ACCELERATE_USE_CPU"] = settings_.boolean("use_cpu") ? "True" : "False";
    } else if (settings_.boolean("use_cpu")) {
      result["ACCELERATE_USE_CPU"] = "True";
    }
    if (!plan_.gpu_ids.empty()) {
      std::string list;
      for (const std::string& id : plan_.gpu_ids) {
        list += (list.empty() ? "" : ",") + id;
      }
      result["CUDA_VISIBLE_DEVICES"] = list;
    }
    if (const int threads = omp_threads(); threads > 0) {
      result["OMP_NUM_THREADS"] = std::to_string(threads);
    }
  }

  [[nodiscard]] std::string deepspeed_fields() const {
    std::string fields;
    for (const std::string& field : file_.deepspeed_fields) {
      fields += (fields.empty() ? "" : ",") + plugins::lower(field);
    }
    return fields;
  }

  [[nodiscard]] std::string python_path() const {
    std::string path;
    for (const std::string_view entry : plugins::split(variable(environment_, "PYTHONPATH"), ':')) {
      if (!entry.empty()) {
        path += std::string(entry) + ":";
      }
    }
    return path + facts_.working_directory.string();
  }

  /// Threads of a worker; 0: leave the parent's OMP_NUM_THREADS. Cores are shared out on the CPU; a
  /// GPU worker gets one, as from torchrun.
  [[nodiscard]] int omp_threads() const {
    if (settings_.has("num_cpu_threads_per_process")) {
      return static_cast<int>(settings_.integer("num_cpu_threads_per_process"));
    }
    const std::string inherited = variable(environment_, "OMP_NUM_THREADS", "0");
    if (inherited != "0") {
      return 0;
    }
    return plan_.device == Device::cpu ? std::max(1, facts_.cores / plan_.local_world_size) : 1;
  }

  const Flags& flags_;
  const std::optional<plugins::Document>& config_;
  const plugins::Environment& environment_;
  const HostFacts& facts_;
  Settings settings_;
  plugins::AccelerateConfig file_;
  LaunchPlan plan_;
};

}  // namespace

std::optional<plugins::Document> load_config(const Flags& flags,
                                             const plugins::Environment& environment) {
  if (const Flags::Value* named = flags.find("config_file")) {
    return plugins::load_document(named->text);
  }
  const std::string home = variable(environment, "HOME", "/");
  const std::string cache = variable(environment, "XDG_CACHE_HOME", home + "/.cache");
  const fs::path base = variable(environment, "HF_HOME", cache + "/huggingface");
  const fs::path path = base / "accelerate" / "default_config.yaml";
  std::error_code error;
  if (!fs::exists(path, error)) {
    return std::nullopt;
  }
  return plugins::load_document(path);
}

LaunchPlan resolve(const Flags& flags, const std::optional<plugins::Document>& config,
                   const plugins::Environment& environment, const HostFacts& facts) {
  return Resolver(flags, config, environment, facts).resolve();
}

}  // namespace acc::launcher
