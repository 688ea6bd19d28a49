# SPDX-License-Identifier: Apache-2.0
# Manual pages and shell completions, which the programs print from their tables of settings. Included
# by the project it defines the target; as a script it writes the files:
#   cmake -D acclaunch=PROGRAM -D rendezvous=PROGRAM -D folder=DIR -P acc_pages.cmake
if(CMAKE_SCRIPT_MODE_FILE)
  # write_output(FILE COMMAND...): writes the standard output of a command.
  function(write_output file)
    execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${folder}/${file} "${text}")
  endfunction()
  file(REMOVE_RECURSE ${folder})
  execute_process(COMMAND ${acclaunch} manual-page OUTPUT_VARIABLE pages COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" pages "${pages}")
  foreach(page IN LISTS pages)
    if(page STREQUAL launch)
      set(file acclaunch)
    else()
      set(file acclaunch-${page})
    endif()
    write_output(man/man1/${file}.1 ${acclaunch} manual-page ${page})
  endforeach()
  write_output(man/man8/acc-rendezvous.8 ${rendezvous} --print_manual_page)
  foreach(shell bash zsh fish)
    set(place_bash bash-completion/completions/NAME)
    set(place_zsh zsh/site-functions/_NAME)
    set(place_fish fish/vendor_completions.d/NAME.fish)
    string(REPLACE NAME acclaunch file ${place_${shell}})
    write_output(${file} ${acclaunch} completion ${shell})
    string(REPLACE NAME acc-rendezvous file ${place_${shell}})
    write_output(${file} ${rendezvous} --print_completion ${shell})
  endforeach()
  return()
endif()

set(pages ${CMAKE_BINARY_DIR}/pages)
add_custom_command(OUTPUT ${pages}.done
  COMMAND ${CMAKE_COMMAND} -D acclaunch=$<TARGET_FILE:acclaunch_program>
          -D rendezvous=$<TARGET_FILE:acc_rendezvous_program> -D folder=${pages}
          -P ${CMAKE_CURRENT_LIST_FILE}
  COMMAND ${CMAKE_COMMAND} -E touch ${pages}.done
  DEPENDS acclaunch_program acc_rendezvous_program ${CMAKE_CURRENT_LIST_FILE}
  COMMENT "Writing manual pages and completions" VERBATIM)
add_custom_target(acc_installed_pages ALL DEPENDS ${pages}.done)
foreach(program acclaunch acc-rendezvous)
  install(DIRECTORY ${pages}/man DESTINATION ${CMAKE_INSTALL_DATADIR}
          FILES_MATCHING PATTERN "${program}*")
  foreach(shell bash-completion zsh fish)
    install(DIRECTORY ${pages}/${shell} DESTINATION ${CMAKE_INSTALL_DATADIR}
            FILES_MATCHING REGEX "/_?${program}(\\.fish)?$")
  endforeach()
endforeach()
