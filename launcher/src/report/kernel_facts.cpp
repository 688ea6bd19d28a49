#include "report/kernel_facts.hpp"

namespace acc::launcher {

KernelFacts::KernelFacts() = default;

std::string KernelFacts::cause(const WorkerRecord& /*worker*/,
                               const std::string& /*working_directory*/) const {
  return {};
}

}  // namespace acc::launcher
