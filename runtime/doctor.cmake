# acc_doctor: the program that `acclaunch doctor` starts on each machine (src/doctor/README.md).
acc_add_library(doctor_parts
  SOURCES
    src/doctor/alone.cpp
    src/doctor/answering.cpp
    src/doctor/examine.cpp
    src/doctor/facts.cpp
    src/doctor/facts_json.cpp
    src/doctor/findings.cpp
    src/doctor/gather.cpp
    src/doctor/machine_findings.cpp
    src/doctor/measure.cpp
    src/doctor/pair_findings.cpp
    src/doctor/probe.cpp
    src/doctor/report.cpp
    src/doctor/schedule.cpp
  PUBLIC acc::base acc::settings acc::store
  PRIVATE acc::collectives nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
target_include_directories(acc_doctor_parts PUBLIC
  $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>)
target_compile_definitions(acc_doctor_parts PRIVATE ACC_VERSION="${PROJECT_VERSION}")

add_executable(acc_doctor src/doctor/acc_doctor.cpp)
target_link_libraries(acc_doctor PRIVATE acc_options acc::doctor_parts acc::collectives)
install(TARGETS acc_doctor RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
